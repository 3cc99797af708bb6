"""What the shells share and no shell owns: at present the one dialler.

Every connection that Keyhole itself opens to another host is resolved, judged and dialled here. May
import `policy` and `model`; knows nothing of sandboxes, services or the audit log.
"""
