"""The documentation as a site: the pages of docs/, and a reference that is written from what the
code says of itself.

`python -m deploy.site` (`make docs`) builds it into `site/`; nothing in it is loaded from another
host.
"""
