"""`dpfest bench`: what private training costs, against competitors that take turns with it in the same run.

Machines are shared and drift, so what counts is the ratio to a named reference within a turn.
"""
