"""The floor that the shells share, and that none of them owns: the one dialler, and fault reports.

Every connection that Keyhole itself opens to another host is resolved, judged and dialled here. May
import `policy` and `model`; knows nothing of sandboxes, services or the audit log.
"""
