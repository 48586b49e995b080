"""`iotrace mcp`: a server of the Model Context Protocol, for people whose assistant mends their training."""
