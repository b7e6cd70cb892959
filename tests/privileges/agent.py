"""``cpubind`` on a node with more CPUs than this machine has: ``python -m tests.privileges.agent run --standalone …``.

All of it is the agent's own but the CPUs that masks are about (`tests.host.wider`).
"""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

from agent.cli import main, run
from agent.demo.profiles import small
from tests.host.wider import WiderHost

PROFILE = small()

if __name__ == "__main__":
    with patch.object(run, "LinuxHost", partial(WiderHost, PROFILE)):
        main()
