"""One schema for the tables of all sites.

site_table  a site's table: its summary, its data set, and what differs if it does not fit the schema
exchange    the server asks for summaries and merges them
messages    what is sent for that
"""
