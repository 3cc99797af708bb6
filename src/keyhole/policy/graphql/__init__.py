"""GraphQL of a forge, under the grant of its repositories.

`judge.py` is the entry. A document is read (`document.py`), resolved to a tree of fields by the
table of what is open (`table.py`, `github.graphql`, `selection.py`), judged (`roots.py`,
`mutations.py`, `search_query.py`), and written anew from that tree (`writing.py`): the forge gets
what was judged, and never the client's own text. `answer.py` reads what comes back.

A run imports it at the first GraphQL request, since the library takes a fifth of a second; the
gateway of many sessions does when it starts.
"""
