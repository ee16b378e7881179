"""What a run has taken so far, over all its sittings: cost.json, beside its checkpoint."""

import resource
import time
from pathlib import Path

import torch

from metabt.files import read_json, write_json
from metabt.training.distributed import Group


class Cost:
    """Counts from its making. What was done after the last `save` of a killed process is lost."""

    def __init__(self, path: Path, group: Group, anew: bool) -> None:
        self.path, self.group = path, group
        self.began = time.monotonic()
        before = read_json(path) if path.exists() and not anew else {}
        self.seconds = float(before.get("seconds", 0))
        self.peak_mb = float(before.get("peak_mb", 0))
        self.sittings = int(before.get("sittings", 0)) + 1

    def save(self) -> None:
        on_gpu = self.group.device.type == "cuda"
        if on_gpu:
            peak = torch.cuda.max_memory_allocated(self.group.device) / 1e6
            device = torch.cuda.get_device_name(self.group.device)
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
            device = "cpu"
        record = {
            "seconds": round(self.seconds + time.monotonic() - self.began, 1),
            "sittings": self.sittings,
            "peak_mb": round(max(self.peak_mb, peak)),
            "device": device,
            "processes": self.group.ranks,
        }
        write_json(self.path, record)
