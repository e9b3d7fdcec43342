"""What is rewarded: pure functions from (prompt, completion, reference, row) to a number.

Read `contract`, then any reward (each is a module of its type's name), then `scoring`.
"""
