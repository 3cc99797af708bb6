"""MCP: judges what a client asks of a remote server, and filters what the server answers.

Pure. `judge.py` is made for each session and service; `policy/mcp_grant.py` is the policy's part.
"""
