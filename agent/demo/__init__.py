"""The whole agent on a virtual node: stand-in npu-smi, /proc and /sys trees, a fake kernel, stand-in workers."""
