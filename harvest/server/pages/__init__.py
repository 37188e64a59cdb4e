"""The dashboard: pages rendered on the server, for the person on call. No build step, no scripts from elsewhere.

    views     what each page shows
    session   signing in with a token
    charts    pure: numbers to the geometry of plots
    render    templates and how values look

A page is live without asking: `static/app.js` holds one stream of changes, fetches the page again when something it shows has
moved, and puts what differs in place. Reads that several viewers want are made once.
"""

from harvest.server.pages.views import pages

__all__ = ["pages"]
