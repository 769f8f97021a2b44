"""`dpfest bench`: times of private training and its competitors, in turns within one run.

Shared machines drift, so the result is the ratio to a named reference within a turn.
"""
