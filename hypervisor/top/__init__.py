"""The terminal view of a node or a cluster: what comes in are objects of the API, what goes out are lines of text.

feed watches a server in threads, rows turns its messages into figures, layout turns figures and the state of the
keyboard into styled lines, screen shows these on a terminal. Everything but feed and screen is pure. How to reach the
server, to describe an object and to change a limit is given by the caller (see interfaces).
"""

from hypervisor.top.feed import Feed
from hypervisor.top.interfaces import LimitChange, Outside
from hypervisor.top.plain import plain_frame
from hypervisor.top.screen import NoTerminal, show

__all__ = ["Feed", "LimitChange", "NoTerminal", "Outside", "plain_frame", "show"]
