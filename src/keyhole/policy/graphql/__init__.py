"""GraphQL of a forge, under the grant of its repositories.

`judge.py` is the entry. It has a document parsed (`document.py`), resolved to a tree of fields by
the table of allowed fields (`table.py`, `github.graphql`, `selection.py`), judged (`roots.py`,
`mutations.py`, `search_query.py`), and written from that tree (`writing.py`). So the forge gets
exactly what was judged, and never the client's own text. `answer.py` checks the answer.

A run imports this package at the first GraphQL request, because the library takes a fifth of a
second to load; the gateway of many sessions imports it when it starts.
"""
