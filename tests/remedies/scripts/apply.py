"""What `oomdoc run --apply` does in its child, without a recorder: install the remedies, then run the script.

Usage: apply.py SETTINGS.json SCRIPT [ARGS]. The last line printed is a JSON object: notes and unapplied.
"""

import json
import os
import runpy
import sys
from pathlib import Path

from oomdoc.remedies.interface import Setting
from oomdoc.remedies.runtime.install import install

settings = [Setting(name=s.pop("name"), options=s) for s in json.loads(Path(sys.argv[1]).read_text())]
script, sys.argv = sys.argv[2], sys.argv[2:]
with install(settings, world_size=int(os.environ.get("WORLD_SIZE", "1")), device_type="cpu") as applied:
    runpy.run_path(script, run_name="__main__")
    sys.stdout.write(json.dumps({"notes": applied.notes, "unapplied": applied.unapplied()}) + "\n")
