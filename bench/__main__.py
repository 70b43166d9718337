"""All benchmarks: `python -m bench NAME [OPTIONS]`.

Without a name, those that README.md and docs/performance.md show.
"""

import importlib
import os
import subprocess
import sys

COMMANDS = {
    "peers": ("bench.compare", "W1 to W8 against the plain PyTorch loop and other simulators"),
    "environments": ("bench.environments", "makes the other simulators' environments"),
    "bf16": ("bench.bf16", "gradients in bfloat16 beside float32: time and accuracy"),
    "flute": ("bench.flute", "FLUTE's four tasks beside its published times"),
    "limits": ("bench.limits", "what the machine can do"),
    "population": ("bench.population", "a round by the number of clients"),
    "seeds": ("bench.seeds", "five seeds in a batch against one by one"),
    "load": ("bench.load", "the service under load"),
    "scale": ("bench.scale", "the service on a large database, and claims of many workers"),
    "startup": ("bench.startup", "a run in a process that is warm, until its first round"),
    "objectives": ("bench.objectives", "steps of objectives beside those of FedAvg"),
    "coverage": ("bench.coverage", "coverage and power of the set of the best arms, simulated"),
    "study": ("bench.study", "samplers, pruners and fronts of studies beside random proposals"),
    "service": ("bench.service", "what the service adds to a run"),
    "shards": ("bench.shards", "a run on two workers, what a round adds, and a model of scaling"),
    "cost": ("bench.cost", "memory and start-up, beside their targets"),
    "engines": ("bench.engines", "the engines against each other, by model"),
    "which-method": ("bench.which_method", "methods of all families beside FedAvg, with paired seeds"),
    "reproductions": ("bench.reproductions", "figures and tables of papers"),
    "held-out": ("bench.held_out", "recorded verdicts on seeds that no record has used"),
}
ALONE = (["peers", "--contenders", "loop"], ["startup"], ["population"], ["seeds"], ["service"], ["load"])


def main() -> None:
    """Run the named benchmark, or all, each in a process of its own."""
    # As in any installation, modules are compiled once and not at every start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if len(sys.argv) == 1:
        for arguments in ALONE:
            subprocess.run([sys.executable, "-m", "bench", *arguments], check=True)  # noqa: S603 - our own
        return
    name, *arguments = sys.argv[1:]
    if name not in COMMANDS:
        sys.exit("\n".join([__doc__, "", *(f"{name:13} {about}" for name, (_, about) in COMMANDS.items())]))
    importlib.import_module(COMMANDS[name][0]).main(arguments)


if __name__ == "__main__":
    main()
