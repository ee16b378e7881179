"""What is asked of Slurm before jobs are sent to it: does it know the partitions and accounts, and do
jobs of a driver that was killed still run? Where there is no Slurm, or no answer, nothing is held up.
"""

import getpass
import subprocess
import time


def ask(*command):
    """The lines that a command of Slurm's answers; none if it is not there or does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in done.stdout.splitlines() if line.strip()]


def minutes_of(limit):
    """A time limit as Slurm writes it (1-00:00:00, 30:00, infinite) in minutes; none if there is
    none."""
    if not re.fullmatch(r"(\d+-)?[\d:]+", limit):
        return None
    days, _, clock = limit.rpartition("-")
    hours, minutes, seconds = ([0, 0] + [int(part) for part in clock.split(":")])[-3:]
    return (int(days or 0) * 24 + hours) * 60 + minutes + seconds / 60


def requests_of_jobs():
    """(resource, value) -> a rule that asks for it, over all jobs that will be sent to Slurm."""
    found = {}
    for job in workflow.dag.needrun_jobs():
        if not job.is_local:
            for name in ("slurm_partition", "slurm_account", "runtime"):
                if value := job.resources.get(name):
                    found.setdefault((name, value), (job.rule.name, job.resources))
    return found


def check_requests():
    """Refuse a mistyped partition or account at once, and say which there are."""
    asked = requests_of_jobs()
    answer = ask("sinfo", "--all", "--noheader", "--format", "%R %l")
    partitions = dict(line.split() for line in answer)
    faults = []
    for (name, value), (rule, resources) in asked.items():
        if name == "slurm_partition" and partitions:
            for wanted in str(value).split(","):
                if wanted not in partitions:
                    faults.append(
                        f"slurm_partition '{wanted}' (asked for by {rule}): this cluster's "
                        f"partitions are {', '.join(sorted(partitions))}"
                    )
        if name == "slurm_account":
            faults += wrong_accounts(str(value), rule)
        if name == "runtime":
            partition = str(resources.get("slurm_partition"))
            limit = minutes_of(partitions.get(partition, ""))
            if limit is not None and value > limit:
                faults.append(
                    f"runtime {value} (minutes, asked for by {rule}): partition '{partition}' allows "
                    f"{limit:.0f} at most; lower it under set-resources, {rule}"
                )
    if faults:
        raise WorkflowError(
            "Slurm would refuse these jobs. Correct the profile (slurm/config.yaml):\n  "
            + "\n  ".join(faults)
        )


def wrong_accounts(value, rule):
    """What is wrong with a rule's account, or accounts."""
    answer = ask("scontrol", "show", "config")
    if any(re.match(r"AccountingStorageType\s*=.*/none", line) for line in answer):
        return [
            f"slurm_account '{value}' (asked for by {rule}): this cluster keeps no accounts; "
            "remove the line"
        ]
    command = "sacctmgr --noheader --parsable2 show associations format=account"
    known = {
        line.lower() for line in ask(*command.split(), f"user={getpass.getuser()}")
    }
    return [
        f"slurm_account '{wanted}' (asked for by {rule}): your accounts are "
        + ", ".join(sorted(known))
        for wanted in re.split(r"[,\s]+", value)
        if known and wanted.lower() not in known
    ]


def left_over_jobs():
    """Slurm's numbers of jobs of this workflow in this directory. We hold the directory's lock, so the
    driver that sent them was killed, and nobody waits for them."""
    rules_ = sorted((rule.name for rule in workflow.rules), key=len, reverse=True)
    ours = re.compile(rf"rule_(?:{one_of(rules_)})(?:_wildcards_|$)")
    fields = [
        line.split("|")
        for line in ask(
            *("squeue", "--noheader", "--user", getpass.getuser()),
            *(
                "--states",
                "PENDING,RUNNING,COMPLETING,SUSPENDED",
                "--format",
                "%i|%Z|%k",
            ),
        )
    ]
    here = Path.cwd().resolve()
    return [
        number
        for number, directory, comment in (f for f in fields if len(f) == 3)
        if Path(directory).resolve() == here and ours.match(comment)
    ]


def end_left_over_jobs():
    """They save what they have when they are cancelled, and the new ones go on from there; two at the
    same file would be in each other's way."""
    numbers = left_over_jobs()
    if not numbers or not workflow.execution_settings.lock:
        return
    print(
        f"Slurm jobs {' '.join(numbers)} were sent by a driver that is gone: they are cancelled "
        "(training saves first), and their work goes on in new jobs.",
        file=sys.stderr,
    )
    ask("scancel", *numbers)
    end = time.monotonic() + 300
    while left_over_jobs() and time.monotonic() < end:
        time.sleep(1)


def check_cluster():
    if (
        workflow.executor_plugin is not None
        and workflow.executor_plugin.name == "slurm"
    ):
        check_requests()
        end_left_over_jobs()
