"""What `oomdoc run --apply` does in its child, without a recorder: install the remedies, then run the script.

apply.py SETTINGS.json SCRIPT [ARGS] runs once. apply.py --serve reads jobs as JSON lines {settings, script, args,
stdout, stderr} and runs each in a fork of its own, which spares the start of torch; it answers with the exit status.
The last line that a run prints is a JSON object: notes and unapplied.
"""

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed.fsdp
from oomdoc.remedies.interface import Setting
from oomdoc.remedies.runtime.install import install


def run(entries, script, args):
    settings = [Setting(name=s["name"], options={k: v for k, v in s.items() if k != "name"}) for s in entries]
    sys.argv = [script, *args]
    if not settings:
        runpy.run_path(script, run_name="__main__")
        return
    with install(settings, world_size=int(os.environ.get("WORLD_SIZE", "1")), device_type="cpu") as applied:
        runpy.run_path(script, run_name="__main__")
        sys.stdout.write(json.dumps({"notes": applied.notes, "unapplied": applied.unapplied()}) + "\n")


def serve():
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            for name, number in (("stdout", 1), ("stderr", 2)):
                os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT, 0o600), number)
            status = 0
            try:
                run(job["settings"], job["script"], job["args"])
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


torch.set_num_threads(1)
if sys.argv[1] == "--serve":
    serve()
else:
    run(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2], sys.argv[3:])
