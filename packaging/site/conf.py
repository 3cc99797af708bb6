"""Settings of Sphinx; `scripts/make_site.py` starts it on a copy of the documents (`make site`)."""

project = "Keyhole"
author = "The Keyhole authors"
html_title = "Keyhole"
html_theme = "furo"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
myst_heading_anchors = 4  # the anchors that a forge gives to headings

# The pages are read as they are written: no inventory of another site, no date, no source link.
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
smartquotes = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
