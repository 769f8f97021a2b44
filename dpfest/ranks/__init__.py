"""One private step over several processes (ranks), for tables that do not fit one machine.

Rows belong to *virtual shards* (row modulo V, V fixed for a run), shards to ranks, and examples to M *parts* (index
modulo M), parts to ranks. Everything random or stored follows the shard, and everything summed is exact in any order:
a step is a function of key, weights, batch, V and M, and does not depend on the number of ranks. So a run resumes on
more or fewer ranks with the same bits; otherwise a repeated step would be a second release under other noise.

``group``: the collectives; ``layout``: rows to shards; ``table``: a rank's part of a table; ``exchange``: rows asked
for and answered; ``rows``: the parts of a step; ``lazy``: its lazy noise; ``training``: the loop, and states by shard.

Formal guarantee: that of :class:`dpfest.step.engine.PrivateEngine`, towards everyone who sees the release alone.
Messages between ranks hold raw data: ranks and the network between them are inside the trust boundary
(docs/PRIVACY.md).
"""
