"""``nightshift quickstart``: the whole way on a tiny model, on the real vLLM, in some minutes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from app.cli.local import LocalRun, run_study
from app.cli.options import HomeOption, PortOption, VllmPythonOption, local_settings, vllm_python
from app.cli.study_file import study_from
from tuner.errors import FieldError
from workers.gpu import owned_gpus

__all__ = ["memory_share", "quickstart", "study_for_quickstart"]

GENERATOR = Path(__file__).parents[2] / "workers" / "tiny_model.py"
ENGINE_BYTES = int(4.2 * 2**30)
"""Memory that the defaults may take on a CPU: 1 GiB of process and somewhat more than the 2 GiB of KV cache
that the model's whole context needs, so that the baseline can run."""
SEED = 14
"""Makes one of the first eight trials infeasible, and half of them start without compiling."""


def quickstart(
    trials: Annotated[int, typer.Option(min=2, help="Configurations to try, vLLM's defaults included.")] = 8,
    name: Annotated[str, typer.Option(help="Name of the study.")] = "quickstart",
    port: PortOption = None,
    python: VllmPythonOption = None,
    home: HomeOption = None,
) -> None:
    """Tune a tiny model with random weights on this machine, to see how it all works.

    Makes the model, starts a control plane and a worker, tries eight configurations of the real vLLM (some
    of which cannot run, on purpose), and prints the recommendation. Takes about seven minutes on two CPU
    cores. Run again, it goes on where it stopped, or shows the result that it has.

    \b
    Examples:
      nightshift quickstart
      nightshift quickstart --name second --trials 20
    """
    settings = local_settings(home)
    interpreter = vllm_python(python)
    model = make_model(interpreter, settings.home / "models" / "tiny")
    on_gpu = bool(owned_gpus(None))
    spec = study_from(study_for_quickstart(name, model, trials, on_gpu=on_gpu))
    run_study(spec, LocalRun(settings=settings, port=port, interpreter=interpreter))


def make_model(interpreter: Path, folder: Path) -> Path:
    """Let the engine's interpreter write the model's folder.

    Raises:
        FieldError: there is no such interpreter, or it cannot write the folder.
    """
    if shutil.which(interpreter) is None:
        raise FieldError(
            "NIGHTSHIFT_VLLM_PYTHON",
            str(interpreter),
            problem="there is no such interpreter",
            fix="run `make quickstart`",
        )
    command = [str(interpreter), "-I", str(GENERATOR), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own file
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise FieldError(
            "NIGHTSHIFT_HOME",
            str(folder),
            problem=f"the model cannot be made: {last}",
            fix="name a folder that can be written",
        )
    return folder


def study_for_quickstart(name: str, model: Path, trials: int, *, on_gpu: bool) -> dict[str, Any]:
    """The study: short windows, and a space that holds configurations which vLLM refuses.

    The model's whole context of 262,144 tokens needs 2 GiB of KV cache, so it cannot run with 1 GiB.
    """
    knobs: dict[str, Any] = {
        "max_num_seqs": {"low": 4, "high": 64, "step": "pow2"},
        "max_num_batched_tokens": {"low": 128, "high": 2048, "step": "pow2"},
        "block_size": [16, 32, 64] if on_gpu else [32, 64, 128],
        "enforce_eager": [False, True],
        "max_model_len": [1024, 8192, 262144],
        **({"kv_cache_memory_bytes": [2**30, 3 * 2**30]} if on_gpu else {"VLLM_CPU_KVCACHE_SPACE": [1, 3]}),
    }
    share = 0.5 if on_gpu else memory_share()
    return {
        "name": name,
        "engine": {
            "kind": "vllm",
            "model": str(model),
            "args": {"load_format": "dummy", "gpu_memory_utilization": share},
        },
        "hardware": {"gpus": 1 if on_gpu else 0},
        "workload": {
            "prompts": {
                "kind": "synthetic",
                "input_tokens": {"mean": 64, "stdev": 16},
                "output_tokens": {"mean": 24, "stdev": 6},
            },
            "arrivals": {"kind": "closed", "concurrency": 16},
            "warmup_s": 3,
            "measure_s": 6,
        },
        "space": {"preset": "none", "knobs": knobs},
        "slos": [{"metric": "ttft_p95_s", "max": 5.0}],
        "budget": {"trials": trials},
        "seed": SEED,
        "startup_timeout_s": 300,
    }


def memory_share() -> float:
    """The share of a memory node that the defaults may take on a CPU, so that the baseline can run.

    vLLM's own default of 0.92 asks for nearly all memory of the node, which a machine in use does not have.
    """
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*/meminfo"))
    totals = [int(node.read_text().split("MemTotal:")[1].split()[0]) * 1024 for node in nodes]
    return min(0.8, round(ENGINE_BYTES / min(totals, default=psutil.virtual_memory().total), 2))
