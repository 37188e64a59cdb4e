"""The HTTP door: an API over the same verbs as the Python client, a dashboard, and metrics. Closed by default.

    app        the server's own application, and the router that yours mounts
    access     who may do what: tokens with scopes, the dashboard's session, rates
    api/       the routes, one module per noun; `models` are their bodies
    problems   errors as RFC 9457 documents with the names that Python has
    routing    what each route does around its handler: problems, the audit row
    desk       what routes stand on; `shared` reads that many viewers want are made once
    pages/     the dashboard: pages rendered here, kept live by one stream

Needs the extra `server`: pip install 'harvest-engine[server]'.
"""

from harvest.server.access import Principal
from harvest.server.app import create_app, router

__all__ = ["Principal", "create_app", "router"]
