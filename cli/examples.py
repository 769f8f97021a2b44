"""The examples in the help texts; tests run them."""

from __future__ import annotations


def _examples(*lines: str) -> str:
    return "\n\n".join(["[bold]Examples[/bold]", *(f"  {line.replace('[', chr(92) + '[')}" for line in lines)])


EXAMPLES = {
    "dpfest": _examples(
        "dpfest train",
        "dpfest train algorithm=dpsgd privacy.epsilon=3 train.epochs=2",
        "dpfest sweep experiment=comparison sweep.jobs=2",
        "dpfest report",
    ),
    "init": _examples(
        "dpfest init clicks.parquet",
        "dpfest init 'parts/*.csv.gz' --label 'rating > 3' --name ratings",
    ),
    "preprocess": _examples(
        "dpfest preprocess data=journey",
        "dpfest preprocess data=criteo_kaggle data.path=/data/criteo/train.txt.gz data.on_bad_row=skip",
        "dpfest preprocess data=criteo_1tb data.path=/data/criteo_1tb preprocess.jobs=4",
        "dpfest preprocess data=criteo_1tb data.path=/data/criteo_1tb sweep.engine=slurm sweep.cores=4",
    ),
    "card": _examples(
        "dpfest card data=journey",
        "dpfest card data=names_stream data.days=12",
    ),
    "check": _examples(
        "dpfest check data=criteo_kaggle data.path=/data/criteo/train.txt",
        "dpfest check data=criteo_1tb data.path=/data/criteo_1tb device=cuda",
        "dpfest check data=criteo_synthetic check.lines=100000 check.steps=40",
    ),
    "select": _examples(
        "dpfest select algorithm=fest algorithm.selection.rows=20000",
        "dpfest select algorithm=fest algorithm.selection.mechanism=laplace algorithm.selection.epsilon=0.1",
    ),
    "train": _examples(
        "dpfest train algorithm=adafest algorithm.threshold=3 algorithm.noise_ratio=1 privacy.epsilon=1",
        "dpfest train data=criteo_kaggle data.path=/data/criteo/train.txt device=cuda",
        "dpfest train data=table data.path=clicks.parquet data.label=clicked 'data.categorical={user: 8192}'",
        "dpfest train data=nycflights model=dlrm algorithm=fest",
        "dpfest train profile=smoke --cfg job",
        "dpfest train --multirun seed=0,1,2",
    ),
    "sweep": _examples(
        "dpfest sweep algorithm=adafest algorithm.threshold=5,10,20 privacy.epsilon=1,3",
        "dpfest sweep experiment=comparison profile=demo sweep.jobs=2",
        "dpfest sweep experiment=comparison algorithm=adafest --dry-run",
        "dpfest sweep experiment=reference data=names 'seed=range(5)' --cards docs/reference --dry-run",
        "dpfest sweep experiment=comparison sweep.engine=ray sweep.address=10.0.0.1:6379 sweep.gpus=0.25",
    ),
    "watch": _examples("dpfest watch", "dpfest watch /scratch/runs"),
    "predict": _examples(
        "dpfest predict runs/clicks/fest/0a1b2c3d4e5f data.path=new.parquet -o scores.parquet",
        "dpfest predict runs/sst2/fest/0a1b2c3d4e5f --split test -o scores.csv",
    ),
    "evaluate": _examples(
        "dpfest evaluate runs/clicks/fest/0a1b2c3d4e5f data.path=next-month.parquet",
        "dpfest evaluate runs/journey/fest/0a1b2c3d4e5f --split test",
    ),
    "release": _examples(
        "dpfest release runs/journey/adafest/0a1b2c3d4e5f",
        "dpfest release runs/journey/adafest/* --to adafest.zip",
        "dpfest release runs/*/*/* --nonprivate --cards cards/runs.jsonl.xz --made-by 'make reproduce'",
    ),
    "report": _examples(
        "dpfest report",
        "dpfest report --only fig8,frontier",
        "dpfest report --list paths.runs=/data/runs",
        "dpfest report paths.runs=docs/reference",
        "dpfest report --private runs/clicks/fest/0a1b2c3d4e5f",
    ),
    "bench": _examples(
        "dpfest bench step",
        "dpfest bench step --repeats 100 device=cuda",
        "dpfest bench embedding bench.largest_rows=100000000",
        "dpfest bench text data=text_synthetic",
    ),
    "config": _examples(
        "dpfest config",
        "dpfest config train",
        "dpfest config algorithm=adafest",
        "dpfest config data=table",
    ),
    "budget": _examples(
        "dpfest budget budget.examples=45840617 privacy.epsilon=1",
        "dpfest budget budget.examples=45840617 algorithm=fest privacy.fidelity=paper train.epochs=3",
        "dpfest budget --plan data=journey algorithm=dpsgd budget.examples=1175124 budget.examples_seen=4700000",
    ),
    "audit": _examples(
        "dpfest audit",
        "dpfest audit algorithm=adafest privacy.epsilon=2 audit.draws=100000",
    ),
}
