"""`python -m gateway.training STAGE --folder WORK ...`: the stages that made the bundled model, in their order.

speech, tokenizer, pack: made-up questions and answers, spoken, aligned, packed. codec, lm: training. rehearse, lm: more of it.
export: a checkpoint folder. evaluate: scripted calls through the gateway. Each stage goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

# Stage -> module with add_arguments(parser) and run(folder, options), and what it does.
STAGES = {
    "speech": ("speech", "speak every question and answer (needs espeak-ng and flite)"),
    "tokenizer": ("tokenizer", "make the text pieces"),
    "pack": ("packing", "align and pack the speech"),
    "codec": ("codec_training", "train the codec"),
    "lm": ("lm_training", "train the language model"),
    "rehearse": ("rehearsal", "let a trained model say everything: a corpus for training that goes on"),
    "export": ("export", "make a checkpoint folder of what was trained"),
    "evaluate": ("evaluation.run", "call a gateway and judge its answers"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one stage."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m gateway.training", description=__doc__, formatter_class=raw)
    stages = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    for name, (module, says) in STAGES.items():
        stage = stages.add_parser(name, help=says, description=says)
        stage.add_argument("--folder", type=Path, default=Path("training"), help="where the stages keep their work (default: training)")
        stage.set_defaults(module=importlib.import_module(f"gateway.training.{module}"))
        stage.get_default("module").add_arguments(stage)
    options = parser.parse_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    return options.module.run(options.folder, options) or 0


if __name__ == "__main__":
    raise SystemExit(main())
