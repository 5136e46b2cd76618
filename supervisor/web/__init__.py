"""The page that shows everything, and its API. Runs in the process of `leasehold web`, or in an ASGI application.

Needs the extra `web`. Nothing else of the package may import it, but for that command.
"""

from supervisor.web.auth import Auth as Auth
from supervisor.web.auth import Loopback as Loopback
from supervisor.web.auth import ProxyHeader as ProxyHeader
from supervisor.web.auth import Visitor as Visitor
from supervisor.web.composition import app as app
from supervisor.web.tokens import Tokens as Tokens
