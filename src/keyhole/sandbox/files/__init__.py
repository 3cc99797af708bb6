"""The host's files that the sandbox sees: the mount plan, and the comparison after the run.

`mount_planning.plan_mounts` is called outside, as the user; `walk` also in the helper, so this
package imports nothing by itself.
"""
