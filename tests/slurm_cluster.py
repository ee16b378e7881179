"""A real Slurm of one node on this machine, for tests: munge, a controller and a node's daemon,
with two partitions and two pretended GPUs. Its memory and CPUs are pretended, too, so that requests
made for real clusters fit; what a job uses is measured, and one that uses more than it asked for is
killed.

    python tests/slurm_cluster.py start | stop        by hand, for trying things out
"""

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

ETC = Path("/etc/slurm")  # the plugin's srun drops SLURM_CONF: the files must be where all look
MARK = "# MetaBT's test cluster"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
FILES = ("slurm.conf", "gres.conf", "cgroup.conf")


def missing():
    """Why there can be no cluster here, or None."""
    if os.getuid() != 0:
        return "a test cluster of Slurm needs root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if absent:
        return f"no {', '.join(absent)} (Debian: apt install munge slurmctld slurmd slurm-client)"
    conf = ETC / "slurm.conf"
    if conf.exists() and not conf.read_text().startswith(MARK):
        return f"{conf} is there, of a cluster that is not ours"
    return None


def configuration(base, host):
    """The text of the three files. Nothing listens on another address than loopback."""
    slurm = f"""{MARK}
ClusterName=metabt
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=26817
SlurmdPort=26818
SrunPortRange=26900-26999
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A job that is put back into the queue waits until its old credential has expired: 2 minutes
# unless told otherwise.
AuthInfo=socket={base}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd.pid
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd.log
# Without cgroups: processes are found through /proc, their memory is looked at every second.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
SlurmdParameters=config_overrides
EnforcePartLimits=ALL
MinJobAge=3600
# Seconds between SIGTERM and SIGKILL; 30 at most sites.
KillWait=15
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0
JobRequeue=0
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={base}/jobs.log
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 RealMemory=128000 Gres=gpu:2 State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES DefaultTime=30 MaxTime=1-00:00:00 State=UP
PartitionName=gpu Nodes={host} DefaultTime=30 MaxTime=1-00:00:00 State=UP
"""
    gres = f"NodeName={host} Name=gpu File={base}/gpu[0-1]\n"  # any file that exists will do
    cgroup = (
        "CgroupPlugin=cgroup/v1\nConstrainCores=no\nConstrainRAMSpace=no\nConstrainDevices=no\n"
    )
    return dict(zip(FILES, (slurm, gres, cgroup), strict=True))


def wait_until(what, test, seconds=60.0, every=0.2):
    """Try until it is true, or fail with what was waited for."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := test():
            return found
        time.sleep(every)
    raise TimeoutError(f"{what}: not after {seconds:.0f} s")


def answers(*command, timeout=10.0):
    """The output of a command that worked, or None."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env=environment()
    )
    return done.stdout.strip() if done.returncode == 0 else None


def environment():
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
    return {**kept, "PATH": path}


def end_with_parent():
    """So that no daemon outlives tests that are killed: prctl's PR_SET_PDEATHSIG."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Cluster:
    """Starts in a second or two; `stop` ends exactly the processes that it started."""

    def __init__(self, base):
        self.base, self.host = Path(base), socket.gethostname().split(".")[0]
        self.processes = {}

    def start(self):
        for name in ("state", "spool", "etc"):
            (self.base / name).mkdir(parents=True, exist_ok=True)
        for name in ("gpu0", "gpu1"):
            (self.base / name).touch()
        key = self.base / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(1024))
        ETC.mkdir(exist_ok=True)
        for name, text in configuration(self.base, self.host).items():
            (ETC / name).write_text(text)
        socket_, log = self.base / "munge.socket", self.base / "munged.log"
        options = ["--socket", socket_, "--key-file", key, "--log-file", log]
        options += ["--pid-file", self.base / "munged.pid", "--seed-file", self.base / "munge.seed"]
        self._run("munged", "--foreground", "--force", *options)
        wait_until("munge", lambda: answers("munge", "--socket", str(socket_), "-n"))
        self._run("slurmctld", "-D")
        wait_until("slurmctld", lambda: answers("scontrol", "ping"))
        self._run("slurmd", "-D", "-N", self.host)
        wait_until("the node", lambda: answers("sinfo", "-h", "-o", "%T") == "idle")

    def _run(self, name, *arguments):
        with (self.base / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [name, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=end_with_parent,
                env=environment(),
            )

    def stop(self):
        if "slurmd" in self.processes:
            self.clear()
        for process in reversed(self.processes.values()):
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = {}
        for name in FILES:
            (ETC / name).unlink(missing_ok=True)

    def clear(self):
        """Cancel all jobs, and wait until they are gone."""
        answers("scancel", "--full", "--signal=KILL", "--user=root")
        answers("scancel", "--user=root")
        try:
            wait_until("jobs to end", lambda: answers("squeue", "-h", "-t", "PD,R,CG,S") == "", 40)
        except TimeoutError as error:
            print(error, file=sys.stderr)


@contextmanager
def running_cluster():
    """A cluster for as long as it is needed; one at a time on this machine."""
    base = Path(tempfile.mkdtemp(prefix="slurm-"))
    base.chmod(0o755)
    cluster = Cluster(base)
    with Path("/tmp/metabt-slurm.lock").open("w") as handle:
        fcntl.lockf(handle, fcntl.LOCK_EX)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    pids = Path("/tmp/metabt-slurm.pid")
    if sys.argv[1:] == ["stop"]:
        os.kill(int(pids.read_text()), signal.SIGTERM)
    elif sys.argv[1:] == ["start"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        pids.write_text(str(os.getpid()))
        with running_cluster() as cluster:
            print(f"Slurm runs, with its files in {cluster.base}; ends with Ctrl-C", flush=True)
            signal.pause()
    else:
        sys.exit(__doc__)
