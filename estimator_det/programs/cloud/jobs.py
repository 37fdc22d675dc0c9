"""A training job: its program, and its machines with accelerators and TPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Sequence, Tuple

from estimator_det.errors import UsageError
from estimator_det.programs.cloud.paths import parse

MODULE = "estimator_det.model_main"
CONFIG_FILE = "pipeline.config"

CHIEF, WORKER, PARAMETER_SERVER, EVALUATOR = ROLES = ("chief", "worker", "ps", "evaluator")
_ACCELERATOR = re.compile(r"([A-Z]\w*)(?::([1-9]\d*))?")
_NAME = re.compile(r"[A-Za-z][\w-]{0,126}")
# Flags that `submit` sets itself, with the option of `submit` to give instead.
_SET_BY_SUBMIT = {
    "pipeline_config_path": "the option --pipeline_config_path, before the --",
    "import": "the option --import, before the --",
    "job-dir": "the option --job_dir, before the --",
    "use_tpu": "the option --tpu, before the --",
    "tpu_name": "the option --tpu, before the --",
}


class Machine(NamedTuple):
    """One kind of virtual machine."""

    machine_type: str
    accelerator_type: str = ""
    accelerator_count: int = 0
    tpu_topology: str = ""

    @property
    def is_tpu(self) -> bool:
        """True for the host of a TPU."""
        return bool(self.tpu_topology) or self.accelerator_type.startswith("TPU")


class MachinePool(NamedTuple):
    """Equal machines with the same part in training."""

    role: str  # one of ROLES
    machine: Machine
    replicas: int


# TPUs with one host; the number of cores ends the name.
TPUS: Dict[str, Machine] = {
    "v2-8": Machine("cloud-tpu", "TPU_V2", 8),
    "v3-8": Machine("cloud-tpu", "TPU_V3", 8),
    "v5litepod-1": Machine("ct5lp-hightpu-1t", tpu_topology="1x1"),
    "v5litepod-4": Machine("ct5lp-hightpu-4t", tpu_topology="2x2"),
    "v5litepod-8": Machine("ct5lp-hightpu-8t", tpu_topology="2x4"),
}


def parse_accelerator(text: str) -> Tuple[str, int]:
    """`NVIDIA_TESLA_T4:2` -> type and number per machine; the number is 1 by default."""
    parts = _ACCELERATOR.fullmatch(text.upper().replace("-", "_"))
    if parts is None or parts[1].startswith("TPU"):
        raise UsageError(
            f"--accelerator {text}: give a type of Vertex AI and a number for each machine, "
            "e.g. NVIDIA_TESLA_T4:2; TPUs are given by --tpu"
        )
    return parts[1], int(parts[2] or 1)


@dataclass(frozen=True)
class Job:
    """A training job."""

    name: str
    region: str
    project: str  # "" for the default project of gcloud
    job_dir: str  # gs:// folder of the run, without a slash at its end
    pools: Tuple[MachinePool, ...]  # in the order of ROLES, as Vertex AI needs it
    package: str  # file name of the source distribution
    image: str  # URI of the container
    image_has_package: bool = False  # True: estimator-det is installed in it; else the job does it
    flags: Tuple[str, ...] = ()  # flags of model_main, except those that `arguments` adds
    service_account: str = ""  # "" for the default account of the service
    spot: bool = False  # machines that the service may take back at any time
    modules: Tuple[str, ...] = ()  # plug-ins, which the package or the image has

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"--name {self.name}: give a letter and then up to 126 letters, digits, dashes "
                "and underscores"
            )
        try:
            parse(self.job_dir)
        except UsageError as error:
            raise UsageError(f"--job_dir: {error}") from None
        _check_pools(self.pools)

    @property
    def staging(self) -> str:
        """The folder of what the job reads besides its data."""
        return f"{self.job_dir}/jobs/{self.name}"

    @property
    def config_uri(self) -> str:
        """gs:// path of the job's configuration."""
        return f"{self.staging}/{CONFIG_FILE}"

    @property
    def package_uri(self) -> str:
        """gs:// path of the source distribution."""
        return f"{self.staging}/{self.package}"

    @property
    def uses_tpu(self) -> bool:
        """True if any machine has a TPU."""
        return any(pool.machine.is_tpu for pool in self.pools)

    def arguments(self) -> List[str]:
        """All flags of `model_main`, as each replica gets them."""
        flag_names = {_flag_name(flag) for flag in self.flags}
        arguments = [f"--pipeline_config_path={self.config_uri}"]
        arguments += [f"--import={name}" for name in self.modules]
        if "model_dir" not in flag_names:
            arguments.append(f"--model_dir={self.job_dir}")
        return [*arguments, *self.flags]


def _check_pools(pools: Sequence[MachinePool]) -> None:
    """Refuses clusters that no service can run."""
    replicas = {pool.role: pool.replicas for pool in pools}
    if min(replicas.values()) < 1 or replicas[CHIEF] != 1:
        raise UsageError(f"machines of each role must be 1 or more; given {replicas}")
    if any(pool.machine.is_tpu for pool in pools) and len(pools) > 1:
        raise UsageError(
            "a job with a TPU has one machine: remove --workers, --parameter_servers and "
            "--evaluators. The chief evaluates"
        )
    present = [role for role in ROLES if role in replicas]
    missing = [role for role in ROLES[: len(present)] if role not in replicas]
    if missing:
        raise UsageError(
            f"machines for {', '.join(present)} leave the pool of {missing[0]} empty between "
            "them, which gcloud refuses. Give --workers first, then "
            "--parameter_servers, then --evaluators; a chief without an evaluator evaluates itself"
        )
    if replicas.get(EVALUATOR, 1) > 1:
        raise UsageError(f"--evaluators {replicas[EVALUATOR]}: a cluster has one evaluator at most")


def check_flags_of_job(flags: Sequence[str]) -> None:
    """Refuses flags that `submit` sets itself."""
    for flag in flags:
        name = _flag_name(flag)
        if name in _SET_BY_SUBMIT:
            raise UsageError(
                f"{flag} after the --: submit sets this flag of the job. Give "
                f"{_SET_BY_SUBMIT[name]}"
            )


def _flag_name(flag: str) -> str:
    return flag.lstrip("-").partition("=")[0]


def tpu_flags(tpu: str, flags: Sequence[str]) -> List[str]:
    """The flags that the host of one of `TPUS` gets, besides those that are given."""
    num_cores = tpu.rpartition("-")[2]
    is_set = "num_shards" in map(_flag_name, flags)
    return ["--use_tpu", *([] if is_set else [f"--num_shards={num_cores}"])]


def region_part(region: str) -> str:
    """`us`, `europe` or `asia`: where images are read from for machines in a region."""
    first = region.partition("-")[0]
    if first in ("asia", "australia", "me"):
        return "asia"
    return "europe" if first in ("europe", "africa") else "us"
