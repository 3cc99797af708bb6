"""From the text of a policy file to a Policy, and from a Policy to decisions.

Pure: no file, clock, socket or environment. `load.py` is the way in, `rulebook.py` the compiled
form, and each `decide_*` a function from a question to a Decision with its reason.
"""
