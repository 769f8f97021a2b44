"""Sabotages of the code on which the guarantee rests, each of which a quick test of the default suite catches.

`python -m tests.mutations` tries them all, each in a copy of the working tree, and says which survived; a test under
``slow`` tries them too (`test_mutations.py`). Whoever moves, merges or removes a test runs this.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Mutation:
    """A sabotage: ``old`` stands once in ``file``, and ``tests``, arguments of pytest, fail once it reads ``new``."""

    what: str
    file: str
    old: str
    new: str
    tests: str

    def catches(self, tree: Path) -> bool:
        """Whether the tests fail, and not for want of tests, in a copy of the code in which it is made."""
        path = tree / self.file
        text = path.read_text(encoding="utf-8")
        assert text.count(self.old) == 1, f"{self.what}: {text.count(self.old)} places in {self.file}"
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *self.tests.split()]
        try:
            ended = subprocess.run(command, cwd=tree, capture_output=True, text=True)
        finally:
            path.write_text(text, encoding="utf-8")
        assert ended.returncode in (0, 1), f"{self.what}: pytest ended with {ended.returncode}\n{ended.stdout[-2000:]}"
        return ended.returncode == 1


ORDER, SUM, NOISE = "dpfest/step/order.py", "dpfest/gradients/clipped_sum.py", "dpfest/step/step_noise.py"
TRAINING, RELEASE = "dpfest/training/loop.py", "pipelines/runs/release.py"
STEP = "tests/dpfest/test_engine.py"
LAW = "tests/dpfest/test_step_law.py"
MUTATIONS = [
    # The step.
    Mutation(
        "an example's gradient is not clipped",
        SUM, "(self.clipping_norm / norms).clamp_max(1.0)", "torch.ones_like(norms)", STEP,
    ),
    Mutation(
        "an example's gradient is stretched to the clipping norm",
        SUM, "(self.clipping_norm / norms).clamp_max(1.0)", "self.clipping_norm / norms",
        STEP + " tests/dpfest/test_opacus.py",
    ),
    Mutation(
        "dense layers do not count in an example's norm",
        SUM, "squared_norms += layer.squared_norms()", "layer.squared_norms()", STEP,
    ),
    Mutation(
        "rows get half of their noise",
        NOISE, 'shard.key.stream("row noise", step), self.deviation,',
        'shard.key.stream("row noise", step), self.deviation / 2,', LAW,
    ),
    Mutation(
        "every step has the same row noise",
        NOISE, 'shard.key.stream("row noise", step)', 'shard.key.stream("row noise", 0)', LAW,
    ),
    Mutation(
        "the filter of correlated noise rounds halves to the even side",
        "dpfest/step/correlated.py", "2.0 ** (BITS - 1)\n    units *= 2.0**-BITS\n    part[slot] = np.floor(",
        "0\n    units *= 2.0**-BITS\n    part[slot] = np.rint(", "tests/dpfest/test_bands.py",
    ),
    Mutation(
        "noise is not filtered",
        "dpfest/step/correlated.py", "units -= weight * noise", "pass", "tests/dpfest/test_bands.py",
    ),
    Mutation(
        "the columns of a strategy are longer than is accounted for",
        "dpfest/accounting/bands.py",
        "return math.sqrt(sum(a * a for a in self.coefficients)) * (1 + 2.0**-50) / (1 << BITS)",
        "return 1.0", "tests/dpfest/test_bands.py",
    ),
    Mutation(
        "examples take part in steps of all groups",
        "dpfest/planning/other_samplers.py", "members = order[ends[group] : ends[group + 1]]", "members = order",
        "tests/dpfest/test_sampling.py",
    ),
    Mutation(
        "rounds of groups are counted down",
        "dpfest/accounting/accountant.py", "count=math.ceil(event.count / event.bands)",
        "count=max(event.count // event.bands, 1)", "tests/dpfest/test_sampling.py",
    ),
    Mutation(
        "a step out of turn goes on with the noise at hand",
        "dpfest/step/correlated.py", "            drawn = 0\n", "            pass\n",
        "tests/dpfest/test_bands.py",
    ),
    Mutation(
        "what an algorithm keeps of noised rows is not asked",
        ORDER, "own = [algorithm.kept(", "[algorithm.kept(", STEP,
    ),
    Mutation(
        "over ranks, what an algorithm keeps of noised rows is not asked",
        ORDER, "own = [algorithm.kept(", "[algorithm.kept(",
        "tests/dpfest/test_combinations.py::test_a_step_is_that_of_the_reference_or_refused[threshold-ranks]",
    ),
    Mutation(
        "over ranks, all shards draw the same noise",
        "dpfest/ranks/rows.py", 'self.key.derive("shard", shard)', 'self.key.derive("shard", 0)',
        "tests/dpfest/ranks/test_law.py",
    ),
    Mutation(
        "over ranks, rows that no rank touched get no noise",
        "dpfest/step/order.py", "noise.on_rows(shard, of_rows, step)",
        "noise.on_rows(shard, of_rows, step) if of_rows.flat.any() else None", "tests/dpfest/ranks/test_law.py",
    ),
    Mutation(
        "a row that stands twice in a bag counts twice",
        "dpfest/gradients/embeddings.py",
        "isinstance(layer, nn.EmbeddingBag) or call.output.dim() > 2", "call.output.dim() > 2",
        "tests/dpfest/test_combinations.py::test_a_step_is_that_of_the_reference_or_refused[adafest-bags]",
    ),
    Mutation(
        "over ranks, rows may move to bags of other examples than those they were counted for",
        "dpfest/gradients/embeddings.py", "if not all(map(torch.equal, before, after)):", "if False:",
        "tests/dpfest/ranks/test_bags.py::test_bags_that_are_not_one_for_each_example_or_not_always_the_same_are_refused",
    ),
    Mutation(
        "over ranks, a row of padding is owed noise",
        "dpfest/ranks/lazy.py", "settled[padding] = math.inf", "pass",
        "tests/dpfest/ranks/test_bags.py::test_a_row_of_padding_stays_zero_and_is_never_owed_noise",
    ),
    Mutation(
        "sums are divided by the batch's own size",
        ORDER, "divisor = expected_batch_size or max(units, 1.0)", "divisor = max(units, 1.0)", STEP,
    ),
    Mutation("padding rows move", "dpfest/step/local.py", "if table.padding_idx is not None:", "if False:", STEP),
    Mutation(
        "a unit's examples are clipped one by one",
        "dpfest/gradients/capture.py", "Groups(part.units, self.unit.combine, self.device)",
        "Groups(np.arange(len(part.units)), self.unit.combine, self.device)", "tests/dpfest/test_units.py",
    ),
    Mutation(
        "positions are an example's each, where there are as many as examples",
        "dpfest/gradients/sites.py", "        if site in self._shared:\n            return False\n", "",
        "tests/dpfest/test_any_model.py",
    ),
    Mutation(
        "a step goes on with what its check showed to be wrong",
        "dpfest/gradients/sites.py", "if site in self._counted:", "if False:", "tests/dpfest/test_any_model.py",
    ),
    Mutation(
        "a tied table is touched where it is looked up alone",
        "dpfest/gradients/recording.py", 'if f"{name}.weight" in recorder.sites.open:', "if False:",
        "tests/dpfest/test_any_model.py",
    ),
    Mutation(
        "dropout is drawn anew where a call is made again",
        "dpfest/gradients/module_gradients.py", "drawing.calls = self._first_draw", "drawing.calls = 0",
        "tests/dpfest/test_any_model.py",
    ),
    # Noise, and the choice of rows.
    Mutation(
        "two purposes share a stream",
        "dpfest/noise/key.py", "{kind}/{number}/{purpose}", "{kind}/{number}", "tests/dpfest/test_noise.py",
    ),
    Mutation(
        "all blocks of a row have the same noise",
        "dpfest/noise/places.py", "np.arange(per_row, dtype=np.uint64) << np.uint64(48)",
        "np.zeros(per_row, dtype=np.uint64)", "tests/dpfest/test_places.py",
    ),
    Mutation(
        "noise on rows and on the map is of the same words",
        "dpfest/noise/places.py", "DENSE, ROWS, MAP = 1, 2, 3", "DENSE, ROWS, MAP = 1, 3, 3",
        "tests/dpfest/test_places.py",
    ),
    Mutation(
        "ChaCha20 has half of its rounds",
        "dpfest/noise/chacha.py", "for _ in range(10):", "for _ in range(5):", "tests/dpfest/test_noise.py",
    ),
    Mutation(
        "a state's cipher is not compared",
        "dpfest/training/loop.py", "**correlated, **self._own_key.named, **parts", "**correlated, **parts",
        "tests/dpfest/test_cipher.py",
    ),
    Mutation(
        "rounding to the grid is not charged",
        "dpfest/noise/gaussian.py", "(clipping_norm + grid * math.sqrt(coordinates))", "clipping_norm",
        "tests/dpfest/test_gaussian.py tests/dpfest/test_rounding.py",
    ),
    Mutation(
        "the paper's misprint: an untouched row's noise has deviation sigma_1^2 C1^2",
        "dpfest/selection/survivors.py", "mp.erfc(least * grid / deviation /", "mp.erfc(least * grid / deviation**2 /",
        "tests/dpfest/test_survivors.py",
    ),
    Mutation(
        "rows that no example touched never survive",
        "dpfest/selection/survivors.py", "if len(extra) == 0:", "if True:", "tests/dpfest/test_survivors.py",
    ),
    Mutation(
        "an example's contribution map is not clipped",
        "dpfest/algorithms/adafest.py",
        ".clipped(self.contribution_clipping_norm, grid,", ".clipped(math.inf, grid,", STEP,
    ),
    Mutation(
        "lazy noise is that of one step, however many are pending",
        "dpfest/step/lazy.py", "self.pending[number] += (deviation * rate) ** 2",
        "self.pending[number] = self.pending[number] or (deviation * rate) ** 2", "tests/dpfest/test_lazy.py",
    ),
    Mutation(
        "rows of noise alone are kept half as often",
        "dpfest/selection/thresholding.py", "universe, probability, stream)\n    return rows, long",
        "universe, probability / 2, stream)\n    return rows, long",
        "tests/dpfest/test_thresholding.py",
    ),
    Mutation(
        "exponential selection draws with half of the noise",
        "dpfest/algorithms/exponential.py",
        "scale=2 * self.selection_clipping_norm", "scale=self.selection_clipping_norm", STEP,
    ),
    # What it costs.
    Mutation(
        "map and gradient are accounted as if one were free",
        "dpfest/accounting/accountant.py", "noise_multiplier * math.sqrt(1 + 1 / ratio**2)", "noise_multiplier",
        "tests/dpfest/test_accounting.py tests/dpfest/test_privacy_plan.py",
    ),
    Mutation(
        "one step of many is not composed",
        "dpfest/accounting/accountant.py", "self_compose(event.count)", "self_compose(event.count - 1)",
        "tests/dpfest/test_accounting.py tests/dpfest/test_second_accountant.py",
    ),
    Mutation(
        "a period of a stream is accounted at the rate of the whole",
        "dpfest/planning/privacy_plan.py",
        "(settings.examples if FIDELITIES[self.fidelity].own_rates else self.examples)",
        "self.examples", "tests/dpfest/test_stream.py",
    ),
    Mutation(
        "a histogram of many features is noised as one feature's",
        "dpfest/selection/topk.py", "sigma * math.sqrt(sum(most))", "sigma * math.sqrt(max(most))",
        "tests/dpfest/test_topk.py",
    ),
    # What leaves.
    Mutation(
        "a key that is not on the list may leave",
        RELEASE, "if key not in shape:", "if False:", "tests/pipelines/runs/test_release.py",
    ),
    Mutation(
        "the noise seed leaves",
        RELEASE, 'section.pop("noise_seed", None)', "pass", "tests/pipelines/runs/test_release.py",
    ),
    Mutation(
        "a value of a single example has a row",
        "dpfest/selection/vocabulary.py", "return 1 + tail * self.deviation", "return 1 + 0.8 * tail * self.deviation",
        "tests/dpfest/test_vocabulary.py",
    ),
    Mutation(
        "a vocabulary is not paid for",
        "dpfest/planning/privacy_plan.py", "self.vocabulary.events if self.vocabulary and", "[] if self.vocabulary and",
        "tests/dpfest/test_vocabulary.py",
    ),
    Mutation(
        "a ledger is not recounted before it leaves",
        RELEASE, "    refuse_miscounted(folder / LEDGER, ledger, summary)\n", "",
        "tests/pipelines/runs/test_release.py",
    ),
    # What a kill leaves behind.
    Mutation(
        "a resumed run draws another key",
        "pipelines/train/run.py", "self._new_key() if saved is None else", "self._new_key() if True else",
        "tests/pipelines/test_train.py::test_a_fresh_key_is_kept_only_in_the_private_checkpoint",
    ),
    Mutation(
        "steps before a kill are not counted as spent",
        TRAINING, "        self.ledger.spend_step(self._number, max(0, done + reserved - paid))\n", "",
        "tests/dpfest/test_training.py tests/pipelines/test_train.py",
    ),
    Mutation(
        "a resumed training does not load its optimisers",
        TRAINING, "                optimizer.load_state_dict(saved)\n", "                pass\n",
        "tests/dpfest/test_training.py tests/pipelines/test_train.py",
    ),
    Mutation(
        "lazy noise forgets on resuming which rows were settled",
        "dpfest/step/lazy.py", "            own.copy_(saved)\n", "            pass\n",
        "tests/dpfest/test_lazy.py",
    ),
]  # fmt: skip


def copy_of_the_tree(folder: Path) -> Path:
    """The files that git tracks and those beside them that it does not ignore, and the compiled loops."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=HOME, capture_output=True, text=True, check=True).stdout.split("\0")
    compiled = [path.relative_to(HOME) for path in (HOME / "dpfest").glob("_kernels*.so")]
    for name in [*filter(None, names), *compiled]:
        if (HOME / name).is_file() and not str(name).startswith("docs/reference"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(HOME / name, folder / name)
    return folder


def main() -> int:
    """Try every mutation whose words or file hold the first argument; say which survive."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    survived = []
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_the_tree(Path(folder))
        for mutation in MUTATIONS:
            if wanted in mutation.what or wanted in mutation.file:
                started = time.monotonic()
                caught = mutation.catches(tree)
                seconds = time.monotonic() - started
                print(f"{'caught' if caught else 'SURVIVED':8}  {seconds:5.0f} s  {mutation.what}", flush=True)
                survived += [] if caught else [mutation.what]
    return 1 if survived else 0


if __name__ == "__main__":
    raise SystemExit(main())
