"""`dpfest audit`: an empirical lower bound on the ε of a step, compared with the claimed ε.

An audit runs the real engine many times on neighbouring batches, guesses from each release which batch it was, and
converts the error rates of the guesses into a lower bound on epsilon (Jagielski, Ullman and Oprea, 2020; Nasr et al.,
2023). It cannot prove a guarantee; it can refute one, and :mod:`pipelines.audit.sabotage` shows that it would.

- :mod:`pipelines.audit.pair`: the neighbouring batches, and how one step makes hundreds of independent draws.
- :mod:`pipelines.audit.bound`: from draws to a bound.
- :mod:`pipelines.audit.sabotage`: flaws that an audit must detect, introduced from outside the engine.
- :mod:`pipelines.audit.audit`: the stage.
"""
