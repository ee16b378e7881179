"""The workflow on a real Slurm of one node, with all that may happen to a job and to the driver.

Data are prepared without it. Runs that were stopped, killed or cancelled must end with the bits of
runs that were not.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from slurm_cluster import answers, environment, missing, running_cluster, wait_until

from metabt.files import read_json
from metabt.training.presence import read_progress

ROOT = Path(__file__).parents[1]
PAIR = "qat-qas"
RUNS = f"results/{PAIR}"
pytestmark = [
    pytest.mark.xdist_group("slurm"),  # one cluster at a time
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


# --- the experiment -------------------------------------------------------------------------------


def small_config(path, steps=()):
    """The demo's experiment with one pair and tiny models; `steps` of a method, if not 20."""
    config = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text())
    pair = config["pairs"][PAIR]
    setting = config["settings"][pair["setting"]]
    shape = {"layers": 1, "width": 32, "feed_forward": 64, "heads": 2, "dropout": 0.1}
    training = {**setting["backward"], "steps": 20, "validate_every": 10, **dict(steps)}
    training["batch"] = {"sentences": 32}
    setting |= {
        "transformer": {**shape, "norm": "post"},
        "backward": training,
        "forward": training,
        "pseudo_batch": {"sentences": 16},
        "metadev_batch": {"sentences": 16},
        "methods": ["nobt", "metabt"],
        "seeds": [1],
    }
    setting["language_model"] = {"transformer": setting["transformer"], "training": training}
    config |= {"pairs": {PAIR: pair}, "settings": {pair["setting"]: setting}, "name": "Small"}
    config["evaluation"]["significance_trials"] = 100
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def profile(directory, train=(), **others):
    """The project's own profile with what a test changes of it."""
    found = yaml.safe_load((ROOT / "slurm" / "config.yaml").read_text())
    found["set-resources"]["train"] |= dict(train)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(yaml.safe_dump({**found, **others}))
    return directory


def command(directory, config, *arguments, profile="slurm"):
    """As a person would type it, but that the state of jobs is asked for more often."""
    often = "--slurm-init-seconds-before-status-checks 6 --seconds-between-status-checks 6"
    options = [*often.split(), "--latency-wait", "10"]
    options += ["--directory", directory, "--configfile", config, "--profile", profile]
    return [sys.executable, "-m", "snakemake", *map(str, [*options, "--", *arguments])]


def surroundings():
    return {**environment(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}


class Driver:
    """A `snakemake --profile slurm` in the background."""

    def __init__(self, directory, config, *targets, profile="slurm", cwd=ROOT):
        self.log = directory / "driver.log"
        self.command = command(directory, config, *targets, profile=profile)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=cwd,
                env=surroundings(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, seconds=400, fails=False):
        try:
            code = self.process.wait(timeout=seconds)
        finally:
            if self.process.poll() is None:
                self.process.kill()
        assert bool(code) == fails, self.text()[-4000:]
        return self.text()

    def text(self):
        return self.log.read_text()


def jobs(directory):
    """Slurm's number -> what it knows about each job that was sent from a directory."""
    found = {}
    for line in answers("squeue", "-h", "--states=all", "-o", "%i|%P|%k|%T|%Z").splitlines():
        number, partition, comment, state, place = line.split("|")
        if Path(place).resolve() == directory.resolve():
            model = re.match(r"rule_(\w+?)(?:_wildcards_(.*))?$", comment)
            gpus = re.search(r"TresPerJob=\S*gpu:(\d+)", answers("scontrol", "show", "job", number))
            found[number] = {
                "partition": partition,
                "rule": model[1],
                "of": model[2],
                "state": state,
                "gpus": int(gpus[1]) if gpus else 0,
            }
    return found


def job_of(directory, of):
    """The number of the job that trains a model now."""
    for number, job in jobs(directory).items():
        if (job["rule"], job["of"], job["state"]) == ("train", f"{PAIR}_{of}", "RUNNING"):
            return number
    return None


def training_now(directory, model):
    """The last sign of life of a model that is being trained."""
    progress = read_progress(directory / RUNS / model)
    alive = progress.get("state") == "running" and Path(f"/proc/{progress['process']}").exists()
    return progress if alive else None


def wait_for_training(directory, model, seconds=120):
    return wait_until(f"{model} to train", lambda: training_now(directory, model), seconds)


def warn(directory, model, number):
    """What Slurm sends before a time limit, by the same way."""
    return answers("scancel", "--signal=USR1", number) is not None


def cancel(directory, model, number):
    return answers("scancel", number) is not None


def kill(directory, model, number):
    os.kill(read_progress(directory / RUNS / model)["process"], signal.SIGKILL)
    return True


def preempt(directory, model, number):
    """What Slurm does to a job in whose place another is to run (PreemptMode=REQUEUE)."""
    return answers("scontrol", "requeue", number) is not None


def fail_node(directory, model, number):
    node = answers("sinfo", "-h", "-o", "%n").split()[0]
    answers("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    wait_until("the job to leave the node", lambda: job_of(directory, model) != number, 60)
    return answers("scontrol", "update", f"NodeName={node}", "State=RESUME") is not None


def disturb(directory, actions, seconds=300):
    """Do to each model's jobs what is listed, one action a sitting; the jobs' numbers."""
    done, sitting = {model: [] for model in actions}, {}

    def all_done():
        for model, todo in actions.items():
            progress = training_now(directory, model)
            number = progress and job_of(directory, model.replace("/", "_"))
            new = number and sitting.get(model) != progress["began"]
            if todo and new and todo[0](directory, model, number):
                todo.pop(0)
                done[model].append(number)
                sitting[model] = progress["began"]
        return not any(actions.values())

    wait_until(f"disturbing {', '.join(actions)}", all_done, seconds)
    return done


def files(directory):
    """All that a run leaves but for its clock."""
    names = ("model.safetensors", "model.json", "metrics.csv", "training.json")
    return {name: (directory / name).read_bytes() for name in names}


def train_undisturbed(directory, model, *options):
    """The same run.json, trained on this machine without Slurm and without interruption."""
    output = directory / "undisturbed" / model
    threads = "2" if model == "backward" else "1"  # as the rule asks for, on two cores
    arguments = ["train", f"{RUNS}/{model}/run.json", "--output", output, "--threads", threads]
    subprocess.run(
        [sys.executable, "-m", "metabt", *map(str, [*arguments, *options])],
        cwd=directory,
        env=surroundings(),
        check=True,
        capture_output=True,
        timeout=300,
    )
    return files(output)


@pytest.fixture(scope="session")
def cluster():
    with running_cluster() as found:
        yield found


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """The data of the experiment."""
    directory = tmp_path_factory.mktemp("prepared")
    config = small_config(directory / "small.yaml")
    options = ["--directory", directory, "--configfile", config, "--cores", "2", "--quiet", "all"]
    subprocess.run(
        [sys.executable, "-m", "snakemake", *map(str, options), "--", "data"],
        cwd=ROOT,
        env=surroundings(),
        check=True,
        timeout=300,
    )
    return directory


@pytest.fixture
def place(cluster, prepared, tmp_path):
    """A directory with prepared data; whatever runs in it is ended after the test."""
    directory = tmp_path / "run"
    shutil.copytree(prepared, directory, symlinks=True)
    yield directory
    cluster.clear()


# --- what may happen ------------------------------------------------------------------------------


def test_training_jobs_are_warned_cancelled_and_killed(place, tmp_path):
    """In a fresh copy of the repository, with the literal profile. One training job is warned of
    its time limit twice; one is cancelled, and its successor loses the trainer to kill -9."""
    clone = tmp_path / "clone"
    ignore = shutil.ignore_patterns(".*", "runs", "results", "downloads", "__pycache__")
    shutil.copytree(ROOT, clone, ignore=ignore)
    config = small_config(place / "small.yaml", {"steps": 200, "validate_every": 50})
    targets = [f"{RUNS}/nobt.bleu", f"{RUNS}/backward/model.json", f"{RUNS}/corpus/parallel.counts"]
    driver = Driver(place, config, *targets, cwd=clone)
    try:
        told = disturb(place, {"nobt/seed1": [warn, warn], "backward": [cancel, kill]})
        text = driver.wait()
    finally:
        driver.process.kill()
    found = jobs(place)
    check_jobs(found, text)
    # Who was warned went back into the queue, under the same number, and did not fail; who was
    # cancelled or killed was tried again.
    first, second = told["nobt/seed1"]
    assert first == second
    assert "Restarts=2 " in answers("scontrol", "show", "job", first)
    assert found[told["backward"][0]]["state"] == "CANCELLED"
    assert sum(job["rule"] == "train" for job in found.values()) == 1 + 3
    assert len(re.findall("Trying to restart job", text)) == 2
    # A sitting that is killed before it has saved anything leaves no trace.
    for model, sittings in (("nobt/seed1", (3,)), ("backward", (2, 3))):
        directory = place / RUNS / model
        assert read_json(directory / "training.json")["status"] == "finished"
        assert read_json(directory / "checkpoint" / "cost.json")["sittings"] in sittings
        assert files(directory) == train_undisturbed(place, model), model
        log = (place / f"results/logs/{PAIR}/{model}/train.log").read_text()
        assert int(re.search(r"going on at step (\d+)", log)[1]) > 0
    again = Driver(place, config, *targets, cwd=clone)
    assert "Nothing to be done" in again.wait(60)[len(text) :]


def check_jobs(found, text):
    """Every job but the light ones has a Slurm number; those that compute on GPUs, and no others,
    got the partition and a GPU."""
    assert set(re.findall(r"submitted with SLURM jobid (\d+)", text)) == set(found)
    rules = {job["rule"] for job in found.values()}
    assert {"train", "translate", "count_words"} <= rules
    local = set(re.findall(r"localrule (\w+):", text))
    assert {"describe_run", "score", "summarise"} <= local
    for job in found.values():
        on_gpu = job["rule"] in ("train", "translate")
        assert job["partition"] == ("gpu" if on_gpu else "cpu")
        assert job["gpus"] == int(on_gpu)


def test_a_killed_driver_leaves_a_job_that_the_next_one_goes_on_from(place, tmp_path):
    """With two GPUs for a training job, by the one line of the profile."""
    config = small_config(place / "small.yaml", {"steps": 1500, "validate_every": 300})
    two = profile(tmp_path / "two", {"gpu": 2})
    target = f"{RUNS}/backward/model.safetensors"
    driver = Driver(place, config, target, profile=two)
    try:
        wait_for_training(place, "backward")
        saved = place / RUNS / "backward" / "checkpoint" / "last.safetensors"
        wait_until("a checkpoint", saved.exists, 120)  # what is killed before it leaves no trace
        left = job_of(place, "backward")
        driver.process.kill()
        driver.process.wait()
        wait_for_training(place, "backward")  # it goes on without its driver
        unlock = command(place, config, target, profile=two)
        unlock.insert(unlock.index("--"), "--unlock")
        subprocess.run(unlock, cwd=ROOT, env=surroundings(), check=True, timeout=60)
        driver = Driver(place, config, target, profile=two)
        text = driver.wait()
    finally:
        driver.process.kill()
    assert f"Slurm jobs {left} were sent by a driver that is gone: they are cancelled" in text
    found = jobs(place)
    trained = {number: job for number, job in found.items() if job["rule"] == "train"}
    assert [job["state"] for job in trained.values()].count("CANCELLED") == 1
    assert trained[left]["state"] == "CANCELLED"
    assert len(trained) == 2
    assert [job["gpus"] for job in trained.values()] == [2, 2]
    cost = read_json(place / RUNS / "backward" / "checkpoint" / "cost.json")
    assert (cost["sittings"], cost["processes"]) == (2, 2)
    assert files(place / RUNS / "backward") == train_undisturbed(
        place, "backward", "--processes", "2"
    )


def test_a_job_over_its_memory_gets_more(place, tmp_path):
    config = small_config(place / "small.yaml")
    little = profile(tmp_path / "little", {"mem_mb": "150 if attempt == 1 else 8000 * attempt"})
    driver = Driver(place, config, f"{RUNS}/backward/model.safetensors", profile=little)
    text = driver.wait()
    assert len(re.findall("Error in rule train", text)) == 1
    states = [job["state"] for job in jobs(place).values() if job["rule"] == "train"]
    assert sorted(states) in (["COMPLETED", "FAILED"], ["COMPLETED", "OUT_OF_MEMORY"])
    assert read_json(place / RUNS / "backward" / "training.json")["status"] == "finished"


def test_a_mistyped_partition_or_account_is_told_before_anything_is_sent(place, tmp_path):
    config = small_config(place / "small.yaml")
    wrong = profile(tmp_path / "wrong", {"slurm_partition": "gup", "slurm_account": "nobody"})
    text = Driver(place, config, "all", profile=wrong).wait(60, fails=True)
    assert (
        "slurm_partition 'gup' (asked for by train): this cluster's partitions are cpu, gpu" in text
    )
    assert "slurm_account 'nobody' (asked for by train): this cluster keeps no accounts" in text
    assert "Traceback" not in text
    long = profile(tmp_path / "long", {"runtime": 2880})
    text = Driver(place, config, "all", profile=long).wait(60, fails=True)
    assert "runtime 2880 (minutes, asked for by train): partition 'gpu' allows 1440 at most" in text
    assert jobs(place) == {}


@pytest.mark.slow
def test_true_time_limits(place, tmp_path):
    """A limit of one minute, hit as often as it takes, is never a failure and changes no bit."""
    config = small_config(place / "small.yaml", {"steps": 12000, "validate_every": 400})
    short = {"runtime": 1, "slurm_extra": "'--signal=USR1@10'"}
    target = f"{RUNS}/backward/model.safetensors"
    driver = Driver(place, config, target, profile=profile(tmp_path / "short", short))
    text = driver.wait(900)
    assert "Error in rule" not in text
    (number,) = (n for n, job in jobs(place).items() if job["rule"] == "train")
    restarts = int(re.search(r"Restarts=(\d+)", answers("scontrol", "show", "job", number))[1])
    assert restarts >= 2
    cost = read_json(place / RUNS / "backward" / "checkpoint" / "cost.json")
    assert cost["sittings"] == restarts + 1
    assert files(place / RUNS / "backward") == train_undisturbed(place, "backward")


@pytest.mark.slow
def test_one_failing_run_stops_no_other_and_a_report_shows_what_exists(place, tmp_path):
    """Training jobs of two GPUs each, by one value of the profile; No BT cannot write its files."""
    config = small_config(place / "small.yaml")
    broken = place / RUNS / "nobt" / "seed1" / "checkpoint"
    broken.parent.mkdir(parents=True)
    broken.write_text("in the way")
    two = profile(tmp_path / "two", {"gpu": 2}, retries=0)
    text = Driver(place, config, "all", profile=two).wait(fails=True)
    found = [job for job in jobs(place).values() if job["rule"] == "train"]
    assert {(job["of"], job["state"], job["gpus"]) for job in found} == {
        (f"{PAIR}_backward", "COMPLETED", 2),
        (f"{PAIR}_metabt_seed1", "COMPLETED", 2),
        (f"{PAIR}_nobt_seed1", "FAILED", 2),
    }
    assert read_json(place / RUNS / "metabt/seed1/checkpoint/cost.json")["processes"] == 2
    assert (place / RUNS / "metabt.bleu").exists()
    log = (place / f"results/logs/{PAIR}/nobt/seed1/train.log").read_text()
    assert log.strip().splitlines()[-1] in text  # the failed job's last line is shown

    arguments = ["--directory", place, "--configfile", config, "--cores", "1"]
    for more in (["so_far"], ["--report", place / "so-far.html", "so_far"]):
        command = [sys.executable, "-m", "snakemake", *map(str, [*arguments, *more])]
        subprocess.run(command, cwd=ROOT, env=surroundings(), check=True, timeout=200)
    table = (place / "results" / "tables" / "so-far.tsv").read_text()
    assert "metabt" in table
    assert "nobt" not in table
    assert (place / "so-far.html").stat().st_size > 100_000


@pytest.mark.slow
def test_a_preempted_job_and_a_failed_node(place):
    """Slurm puts the job back into the queue, under its number, and it goes on."""
    config = small_config(place / "small.yaml", {"steps": 3000, "validate_every": 100})
    driver = Driver(place, config, f"{RUNS}/backward/model.safetensors")
    try:
        told = disturb(place, {"backward": [preempt, fail_node]}, 400)
        text = driver.wait(900)
    finally:
        driver.process.kill()
    assert "Error in rule" not in text
    (number,) = set(told["backward"])
    assert "Restarts=2 " in answers("scontrol", "show", "job", number)
    assert files(place / RUNS / "backward") == train_undisturbed(place, "backward")


@pytest.mark.slow
def test_the_demo_from_nothing(cluster, tmp_path):
    driver = Driver(tmp_path, ROOT / "config" / "demo.yaml", "all")
    text = driver.wait(3000)
    assert "Error in rule" not in text
    found = jobs(tmp_path)
    check_jobs(found, text)
    assert {"hold_out", "clean_mono", "encode", "significance"} <= {
        j["rule"] for j in found.values()
    }
    assert (tmp_path / RUNS / "metabt.bleu").exists()
    cluster.clear()
