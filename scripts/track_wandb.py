#!/usr/bin/env python3
"""Sends runs to Weights & Biases as they write their metrics.

    python scripts/track_wandb.py RUN [RUN ...] [--project phalanx] [--online]

Needs Python 3.11 and `pip install wandb`. Runs are written to ./wandb in offline mode; `wandb sync` uploads them.
With --online they are sent at once.

It reads config.toml, run.json, metrics.jsonl, samples/, state.json and summary.json of each run's folder.
"""

import argparse
import hashlib
import json
import math
import pathlib
import time
import tomllib

import wandb

POLL_SECONDS = 0.5


def read_json(path):
    """Returns the content of a JSON file, or {} while it is missing."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def new_lines(path, offset):
    """Returns the complete lines of a file after a byte, and the byte after the last of them."""
    if not path.exists():
        return [], offset
    with path.open("rb") as file:
        if file.seek(0, 2) < offset:
            # A resumed run has rewritten the file. Steps that were sent are skipped.
            offset = 0
        file.seek(offset)
        data = file.read()
    end = data.rfind(b"\n") + 1
    return [json.loads(line) for line in data[:end].splitlines() if line.strip()], offset + end


def is_over(folder):
    """Returns the exit code of a run that is over, or None: 0 finished, 1 failed, 255 interrupted."""
    activity = read_json(folder / "state.json").get("doing")
    if activity == "failed":
        return 1
    summary = read_json(folder / "summary.json")
    if activity in (None, "ended") and summary:
        return 0 if summary.get("status") == "finished" else 255
    return None


def start(folder, project, online):
    """Starts the copy of a run. Its id is that of every call for this run."""
    starts = read_json(folder / "run.json").get("starts", [])
    first, last = (starts[0], starts[-1]) if starts else ({}, {})
    identity = f"{folder.resolve()}\n{first.get('time', '')}"
    config = tomllib.loads((folder / "config.toml").read_text())
    description = config.pop("description", None)
    run = wandb.init(
        project=project,
        name=folder.name,
        notes=description,
        id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        resume="allow" if online else None,
        mode="online" if online else "offline",
        config=config,
        settings=wandb.Settings(disable_git=True, console="off"),
        reinit="create_new",
    )
    run.config.update({"phalanx": {"command": last.get("command"), "git": last.get("git"), "started": first.get("time")}})
    return run


class Copy:
    """A run and its copy."""

    def __init__(self, folder, project, online):
        self.folder, self.offset, self.step, self.samples = folder, 0, 0, set()
        self.run = start(folder, project, online)

    def poll(self):
        """Sends the news of the run. Returns True once it is over."""
        over = is_over(self.folder)
        lines, self.offset = new_lines(self.folder / "metrics.jsonl", self.offset)
        for line in lines:
            step = line.pop("step")
            # W&B accepts each step once.
            if step > self.step:
                values = {name: math.nan if value is None else value for name, value in line.items()}
                self.run.log({name: value for name, value in values.items() if not isinstance(value, list)}, step=step)
                self.step = step
        if over is None:
            return False
        for picture in sorted((self.folder / "samples").glob("*.png")):
            self.run.log({f"samples/{picture.stem}": wandb.Image(str(picture))})
        self.run.summary.update(read_json(self.folder / "summary.json").get("metrics", {}))
        self.run.finish(exit_code=over)
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN")
    parser.add_argument("--project", default="phalanx")
    parser.add_argument("--online", action="store_true")
    args = parser.parse_args()
    for folder in args.runs:
        if not (folder / "config.toml").is_file():
            parser.error(f"{folder} holds no run: it has no config.toml")
    copies = [Copy(folder, args.project, args.online) for folder in args.runs]
    while copies:
        copies = [copy for copy in copies if not copy.poll()]
        time.sleep(POLL_SECONDS if copies else 0)


if __name__ == "__main__":
    main()
