"""Reading NPUs with npu-smi: running it, its four tables, and the inventory they make together."""
