"""`dpfest audit`: empirical lower bounds on ε, of a step and of whole trainings, compared with the claimed ε.

An audit of a step runs the real engine many times on neighbouring batches, guesses from each release which batch it
was, and converts the error rates of the guesses into a lower bound on epsilon (Jagielski, Ullman and Oprea, 2020; Nasr
et al., 2023). An audit of a training runs it once, with thousands of examples that are each included by a fair coin,
and guesses the coins. Neither can prove a guarantee; both can refute one, and the sabotages show that they would.

Of a step (:mod:`pipelines.audit.step`):

- :mod:`pipelines.audit.pair`: the neighbouring batches, and how one step makes hundreds of independent draws.
- :mod:`pipelines.audit.bound`: from draws to a bound.

Of whole trainings (:mod:`pipelines.audit.whole`: which ones):

- :mod:`pipelines.audit.training`: what is claimed of a training, and one run of it.
- :mod:`pipelines.audit.canaries`: the examples, the run, and what leaves it.
- :mod:`pipelines.audit.attack`: likelihood ratios, and what to guess; :mod:`pipelines.audit.correlated`: those of noise
  that is correlated over steps.
- :mod:`pipelines.audit.guesses`: from right guesses to a bound, with its proof.
- :mod:`pipelines.audit.family`: the claimed mechanism's trade-off curve, and those of more or less noise.

Of both: :mod:`pipelines.audit.flaws` that an audit must detect, introduced from outside the engine, and
:mod:`pipelines.audit.results`: how an audit is carried out case by case, and its record.
"""
