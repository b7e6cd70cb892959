"""cpubind: decides, applies and keeps CPU placement for Ascend NPU inference on a node.

The packages, in the order in which data flows: ``node`` reads the host, ``planning`` computes the plan, ``node`` again
writes it, ``control`` runs observe -> plan -> act -> report, and ``cli`` is what people type. ``model`` holds the
values that they pass to each other.
"""

__version__ = "0.1.0"
