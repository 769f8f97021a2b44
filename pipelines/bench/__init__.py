"""`dpfest bench`: times of private training and its competitors, in turns within one run.

Shared machines drift, so the result is the ratio to a named reference within a turn.

- :mod:`pipelines.bench.sections`: the sections, each a module whose `cases(config)` says what is compared.
- :mod:`pipelines.bench.case`: a case, and its measurement: turns, memory, records.
- :mod:`pipelines.bench.measure`, :mod:`pipelines.bench.worker`: turns; a competitor in a process of its own.
- :mod:`pipelines.bench.records`: what is written.
- :mod:`pipelines.bench.training`, :mod:`pipelines.bench.pctr`: steps of any model, and of the paper's.
"""
