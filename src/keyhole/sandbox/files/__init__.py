"""What the sandbox sees of the host's files: the plan, and the comparison after the run.

`planning.plan_files` is called outside, as the user; `walk` also in the helper, so that this
package imports nothing by itself.
"""
