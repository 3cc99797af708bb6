"""Outside: `sign.py ADDRESS HOST KEY`: sign a request for HOST, secret from standard input; status.

The object that is put is its own; the address is TLS that is not verified, for it is the tests'.
"""

from __future__ import annotations

import http.client
import ssl
import sys

from botocore.auth import S3SigV4Auth  # type: ignore[import-not-found]
from botocore.awsrequest import AWSRequest  # type: ignore[import-not-found]
from botocore.credentials import Credentials  # type: ignore[import-not-found]


def main() -> None:
    """Put an object."""
    address, host, key = sys.argv[1:]
    request = AWSRequest("PUT", f"https://{host}/control", {"Host": host}, b"control")
    S3SigV4Auth(Credentials(key, sys.stdin.read()), "s3", "eu-west-1").add_auth(request)
    context = ssl._create_unverified_context()  # noqa: S323
    connection = http.client.HTTPSConnection(address, context=context)
    connection.request("PUT", "/control", b"control", dict(request.headers))
    sys.stdout.write(str(connection.getresponse().status))


if __name__ == "__main__":
    main()
