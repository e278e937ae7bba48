"""The background process that runs a stack and the platform. `harvest platform` starts it; `harvest down` ends it."""

import json
import sys
from pathlib import Path

from harvest_lib.local_stack import supervisor
from infra.platform.up import make_stack

if __name__ == "__main__":
    state, options, descriptor = sys.argv[1:]
    sys.exit(supervisor.main(lambda: make_stack(Path(state), **json.loads(options)), int(descriptor)))
