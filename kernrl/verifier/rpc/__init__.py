"""Inter-process communication: framed messages, fork servers, clients with time limits, and one form of answer."""
