"""Turns the text of a policy file into a Policy, and questions about a Policy into decisions.

Pure: no file, clock, socket or environment. `load.py` is the way in, `rulebook.py` the compiled
form, and each `decide_*` a function from a question to a Decision with its reason.
"""
