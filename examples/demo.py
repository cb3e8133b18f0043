"""What `make demo` runs: a script that runs out of memory on a GPU this machine does not have, and the way out.

Each step is the command that a user would type; the demo stops if one of them does not end as it says.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
GPU = os.environ.get("OOMDOC_DEMO_GPU", "a100-40gb")


def step(title, arguments, expected_status):
    print(f"\n=== {title}\n$ oomdoc {' '.join(arguments)}\n", flush=True)
    status = subprocess.run([sys.executable, "-m", "oomdoc", *arguments], cwd=HERE).returncode
    if status != expected_status:
        sys.exit(f"demo: expected exit status {expected_status}, got {status}")
    print(f"[exit status {status}]", flush=True)


def main():
    folder = Path(tempfile.mkdtemp(prefix="oomdoc-demo-"))
    first, fixed, config = str(folder / "first"), str(folder / "fixed"), str(folder / "first" / "oomdoc.yaml")
    try:
        step("1. It runs out of memory: what holds the bytes, and which line?",
             ["run", "--gpu", GPU, "-o", first, "train_gpt.py"], 1)
        step("2. Which change makes it fit, at what cost? (the best ones are run again to prove it)",
             ["plan", first], 0)
        print(f"\n--- {config}\n{Path(config).read_text()}")
        step("3. The same script with that change: it fits",
             ["run", "--gpu", GPU, "--apply", config, "-o", fixed, "train_gpt.py"], 0)
        step("4. And CI keeps it so",
             ["gate", "--gpu", GPU, "--apply", config, "--budget", "36GiB", "train_gpt.py"], 0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
