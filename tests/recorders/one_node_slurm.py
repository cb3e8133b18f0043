"""A Slurm of one node on this machine: its three daemons, in a folder of their own. Needs root and the packages."""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONF = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={port}
SlurmdPort={other_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why it cannot be started here."""
    absent = [each for each in ("munged", "slurmctld", "slurmd", "srun", "sinfo") if shutil.which(each) is None]
    if absent:
        return f"needs {', '.join(absent)} (apt: slurmctld slurmd slurm-client munge)"
    return None if os.getuid() == 0 else "starting slurmd needs root"


@contextmanager
def running() -> Iterator[dict[str, str]]:
    """-> the variables with which srun finds it. Raises TimeoutError where the node does not come up."""
    folder = Path(tempfile.mkdtemp(prefix="slurm"))  # short: the path of a socket is at most 108 characters
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    key, conf = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    conf.write_text(
        CONF.format(folder=folder, host=host, port=_port(), other_port=_port(), cores=len(os.sched_getaffinity(0)))
    )
    variables = {"SLURM_CONF": str(conf)}
    munge = [f"--{name}={folder}/munge.{end}" for name, end in (("socket", "sock"), ("pid-file", "pid"),
             ("log-file", "log"), ("seed-file", "seed"))]  # fmt: skip
    commands = (
        ["munged", "--foreground", "--force", f"--key-file={key}", *munge],
        ["slurmctld", "-D", "-f", str(conf)],
        ["slurmd", "-D", "-f", str(conf)],
    )
    daemons = []
    try:
        for command in commands:
            log = (folder / f"{command[0]}.out").open("wb")
            daemons.append(subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=log))
            time.sleep(1)
        _wait({**os.environ, **variables})
        yield variables
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(timeout=20)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(env: dict[str, str]) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True, timeout=20)
        if done.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    raise TimeoutError(f"the node is not idle: {done.stdout}{done.stderr}")


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
