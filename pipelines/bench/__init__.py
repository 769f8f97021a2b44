"""`dpfest bench`: times of private training and of its competitors, in turns within one run.

Machines are shared and drift, so what counts is the ratio to a named reference within a turn.
"""
