"""Files of one run, model or dataset put in place of another's of the same shape: refused, or without effect."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from .commands import files_of, run_command
from .damage import DATASETS, USES, Damage, verify_findings
from .trials import Finding


class Swaps(Damage):
    """Trial k takes a drawn set of files of use k modulo their number from the other seed's."""

    default_count = 300

    def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
        use = USES[number % len(USES)]
        self.begin(use, place)
        target = place / use.target
        other = self.workspace.path / use.target.replace("a", "b", 1)
        names = [file.relative_to(target) for file in files_of(target)]
        common = [name for name in names if (other / name).exists()]
        taken = rng.sample(common, rng.randint(1, min(3, len(common) - 1)))
        changed = [name for name in taken if (target / name).read_bytes() != (other / name).read_bytes()]
        for name in taken:
            shutil.copy2(other / name, target / name)
        what = f"{', '.join(map(str, taken))} of another {use.target}"
        findings = verify_findings(place, use.target, what) if changed and use.target in DATASETS else []
        is_other = all((target / name).read_bytes() == (other / name).read_bytes() for name in common)
        ended = run_command(place, *use.command.split())
        if is_other:  # whole, with files that both have alike
            return findings
        if {"config.json", "state.npz"} <= {name.name for name in taken}:
            # it is the other run, with the log or model of this one
            if ended.is_ugly:
                findings.append(Finding("ugly", f"{what}: {ended}"))
            return findings
        return [*findings, *self.judge(number % len(USES), ended, place, what)]
