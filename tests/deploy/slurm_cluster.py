"""A SLURM of two nodes on this machine, in namespaces of its own; programs of Debian's ``slurmctld`` and ``slurmd``."""

import os
import shutil
import subprocess

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare")
START = """
set -eu
mount --bind "$0/hosts" /etc/hosts
munged --force --key-file="$0/munge.key" --socket="$0/munge.sock" --pid-file="$0/munged.pid" \
    --log-file="$0/munged.log" --seed-file="$0/munge.seed"
export SLURM_CONF="$0/slurm.conf"
hostname control
slurmctld -i
for node in node1 node2; do
    unshare --uts sh -c "hostname $node && exec slurmd -f $SLURM_CONF"
done
until [ "$(sinfo --noheader --partition=low --states=idle --format=%D)" = 2 ]; do sleep 0.1; done
"$@"
"""
CONFIGURATION = """
ClusterName=test
SlurmctldHost=control
SlurmctldPort=17817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=6
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=1
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node1 Port=17818 CPUs=2 RealMemory=32000
NodeName=node2 Port=17819 CPUs=2 RealMemory=32000
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


def missing():
    """Why there can be no such cluster here; empty if there can be one."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    return f"needs {', '.join(absent)}: apt-get install slurmctld slurmd slurm-client munge" if absent else ""


def on_a_cluster(folder, script, cwd, timeout_s):
    """Runs a shell script as a user of the cluster, which ends with it and all processes.

    Args:
        folder: for the cluster's files.
        script: what the user does.
        cwd: the folder from which the user submits.
        timeout_s: after which everything is killed.
    """
    (folder / "state").mkdir(parents=True)
    (folder / "hosts").write_text("127.0.0.1 localhost control node1 node2\n", encoding="utf-8")
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder), encoding="utf-8")
    (folder / "cgroup.conf").touch()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    own = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*own, "bash", "-c", START, str(folder), "bash", "-euc", script]
    env = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin"}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s)
