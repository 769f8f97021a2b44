"""A Slurm of two nodes on this machine, in a folder of its own and on the loopback, set up for tests and taken down."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2]
NODES = ("n1", "n2")
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
MailProg=/bin/true
SchedulerParameters=sched_interval=2
KillWait=5
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=4000
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


@contextmanager
def slurm() -> Iterator[None]:
    """Run Slurm while the block runs, with SLURM_CONF set; install it where root may, or skip the test."""
    _install()
    folder = Path(tempfile.mkdtemp(prefix="dpfest-slurm-"))
    folder.chmod(0o755)  # munge's clients must be able to reach its socket
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    settings = {"host": socket.gethostname().partition(".")[0], "user": getpass.getuser(), "ports": _free_ports(3)}
    file = folder / "slurm.conf"
    file.write_text(CONFIGURATION.format(folder=folder, **settings))
    places = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *places],
        ["slurmctld", "-D", "-f", str(file)],
        *(["slurmd", "-D", "-N", node, "-f", str(file)] for node in NODES),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(file))
        patch.setenv("PYTHONPATH", str(HOME))
        log = (folder / "log").open("wb")
        daemons = []
        try:
            for command in commands:
                daemons.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
                time.sleep(0.5)
            if not _becomes(lambda: told("sinfo", "--noheader", "--format=%T %D") == "idle 2"):
                pytest.skip(f"Slurm's daemons do not start here: {(folder / 'log').read_text()[-2000:]}")
            yield
        finally:
            subprocess.run(["scancel", "--quiet", "--full", "--signal=KILL", f"--user={settings['user']}"], check=False)
            for daemon in reversed(daemons):
                daemon.terminate()
                daemon.wait(timeout=30)
            log.close()
    shutil.rmtree(folder, ignore_errors=True)


def told(*command: str) -> str:
    """What a command of Slurm prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _install() -> None:
    needed = ("slurmctld", "slurmd", "sbatch", "munged")
    if all(map(shutil.which, needed)):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("there is no Slurm, and only root can install one: apt-get install slurm-wlm munge")
    for command in ("update", "install --yes --no-install-recommends slurm-wlm munge"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        ended = subprocess.run(["apt-get", "-qq", *command.split()], env=environment, capture_output=True, text=True)
        if ended.returncode:
            pytest.skip(f"Slurm could not be installed: {ended.stderr.strip().splitlines()[-1:]}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _becomes(true: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
