"""Endpoints of forges' REST, by catalogue entry: what each level of `api` opens and none does.

In all tables R is the granted repository, acme/widgets, and / the root of the forge's REST.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """A catalogue entry: where its REST is, and which of the tables below holds for it."""

    table: str
    host: str
    root: str
    repository: str
    more: str = ""


KINDS = {
    "github": Kind("github", "api.github.com", "", "/repos/acme/widgets"),
    "github-enterprise": Kind(
        "github", "github.corp.example", "/api/v3", "/repos/acme/widgets",
        'hosts = ["github.corp.example"]',
    ),
    "ghe-cloud": Kind(
        "github", "api.acme.ghe.com", "", "/repos/acme/widgets",
        'hosts = ["acme.ghe.com", "api.acme.ghe.com"]',
    ),
    "gitlab": Kind("gitlab", "gitlab.com", "/api/v4", "/projects/acme%2Fwidgets"),
    "gitea": Kind(
        "gitea", "git.corp.example", "/api/v1", "/repos/acme/widgets",
        'hosts = ["git.corp.example"]',
    ),
    "forgejo": Kind(
        "gitea", "git.corp.example", "/api/v1", "/repos/acme/widgets",
        'hosts = ["git.corp.example"]',
    ),
    "codeberg": Kind("gitea", "codeberg.org", "/api/v1", "/repos/acme/widgets"),
}  # fmt: skip

READ = {
    "github": """
        GET /
        GET /user
        GET /rate_limit
        GET /meta
        GET R
        HEAD R
        GET R/contents
        GET R/contents/src/deep/file.py
        GET R/contents/src%2Ffile.py
        GET R/readme
        GET R/readme/docs
        GET R/license
        GET R/languages
        GET R/topics
        GET R/contributors
        GET R/tags
        GET R/branches
        GET R/branches/agent/x
        GET R/branches/agent%2Fx
        GET R/commits
        GET R/commits/main
        GET R/commits/main/status
        GET R/commits/main/check-runs
        GET R/commits/main/check-suites
        GET R/commits/main/pulls
        GET R/comments/1
        GET R/compare/main...agent/x
        GET R/compare/main...agent%2Fx
        GET R/git/blobs/0123
        GET R/git/commits/0123
        GET R/git/tags/0123
        GET R/git/trees/main
        GET R/git/ref/heads/main
        GET R/git/refs
        GET R/git/refs/heads/main
        GET R/git/matching-refs/heads/agent
        GET R/tarball/main
        GET R/zipball
        GET R/issues
        GET R/issues/1
        GET R/issues/1/comments
        GET R/issues/1/events
        GET R/issues/1/labels
        GET R/issues/1/reactions
        GET R/issues/comments/5
        GET R/issues/events/5
        GET R/assignees
        GET R/labels
        GET R/labels/bug
        GET R/milestones/1
        GET R/pulls
        GET R/pulls/1
        GET R/pulls/1/files
        GET R/pulls/1/commits
        GET R/pulls/1/comments
        GET R/pulls/1/reviews
        GET R/pulls/1/merge
        GET R/pulls/comments/5
        GET R/check-runs/1
        GET R/check-runs/1/annotations
        GET R/check-suites/1/check-runs
        GET R/statuses/0123
        GET R/rules/branches/main
        GET R/actions/workflows
        GET R/actions/workflows/ci.yml/runs
        GET R/actions/runs
        GET R/actions/runs/1
        GET R/actions/runs/1/jobs
        GET R/actions/runs/1/logs
        GET R/actions/runs/1/artifacts
        GET R/actions/jobs/1
        GET R/actions/jobs/1/logs
        GET R/actions/artifacts/1/zip
        GET R/releases
        GET R/releases/latest
        GET R/releases/tags/v1
        GET R/releases/assets/1
    """,
    "gitlab": """
        GET /user
        GET /version
        GET /metadata
        GET R/repository/tree
        GET R/repository/archive.tar.gz
        GET R/repository/files/src%2Ffile.py/raw
        GET R/repository/branches/agent%2Fx
        GET R/repository/commits/main/statuses
        GET R/repository/compare
        GET R/languages
        GET R/labels
        GET R/milestones/1
        GET R/issues
        GET R/issues/1
        GET R/issues/1/notes
        GET R/issues/1/discussions
        GET R/issues/1/participants
        GET R/merge_requests
        GET R/merge_requests/1
        GET R/merge_requests/1/commits
        GET R/merge_requests/1/changes
        GET R/merge_requests/1/diffs
        GET R/merge_requests/1/raw_diffs
        GET R/merge_requests/1/versions/2
        GET R/merge_requests/1/notes/2
        GET R/merge_requests/1/discussions
        GET R/merge_requests/1/pipelines
        GET R/merge_requests/1/approvals
        GET R/merge_requests/1/approval_state
        GET R/merge_requests/1/participants
        GET R/merge_requests/1/reviewers
        GET R/pipelines
        GET R/pipelines/1
        GET R/pipelines/latest
        GET R/pipelines/1/jobs
        GET R/pipelines/1/bridges
        GET R/pipelines/1/test_report
        GET R/pipelines/1/test_report_summary
        GET R/jobs
        GET R/jobs/1
        GET R/jobs/1/trace
        GET R/jobs/1/artifacts
        GET R/jobs/artifacts/main/download
        GET R/releases
        GET R/releases/v1
        GET R/packages
    """,
    "gitea": """
        GET /version
        GET /user
        GET R
        GET R/contents
        GET R/contents/src/file.py
        GET R/raw/src/file.py
        GET R/media/src/file.bin
        GET R/archive/main.tar.gz
        GET R/branches/agent%2Fx
        GET R/tags
        GET R/commits
        GET R/commits/main/status
        GET R/compare/main...agent/x
        GET R/git/blobs/0123
        GET R/git/commits/0123
        GET R/git/notes/0123
        GET R/git/refs
        GET R/git/tags/0123
        GET R/git/trees/main
        GET R/languages
        GET R/topics
        GET R/issues
        GET R/issues/1
        GET R/issues/1/comments
        GET R/issues/1/labels
        GET R/issues/1/reactions
        GET R/issues/1/assets/2
        GET R/issues/comments/5
        GET R/assignees
        GET R/labels
        GET R/milestones/1
        GET R/pulls
        GET R/pulls/1
        GET R/pulls/1.diff
        GET R/pulls/1/files
        GET R/pulls/1/reviews
        GET R/statuses/0123
        GET R/actions/tasks
        GET R/actions/runs/1
        GET R/actions/jobs/1/logs
        GET R/actions/artifacts
        GET R/releases/latest
    """,
}

WRITE = {
    "github": """
        POST R/pulls
        PATCH R/pulls/1
        POST R/pulls/1/comments
        POST R/pulls/1/comments/5/replies
        POST R/pulls/1/requested_reviewers
        POST R/issues/1/comments
    """,
    "gitlab": """
        POST R/merge_requests
    """,
    "gitea": """
        POST R/pulls
        PATCH R/pulls/1
        POST R/pulls/1/requested_reviewers
        POST R/issues/1/comments
    """,
}

DANGEROUS = {
    "github": """
        PUT R/contents/.github/workflows/x.yml
        POST R/contents/x
        DELETE R/contents/x
        POST R/git/refs
        PATCH R/git/refs/heads/main
        POST R/git/refs/heads/main
        DELETE R/git/refs/heads/main
        POST R/git/blobs
        POST R/git/trees
        POST R/git/commits
        POST R/git/tags
        POST R/merges
        POST R/merge-upstream
        PUT R/pulls/1/merge
        PUT R/pulls/1/update-branch
        POST R/branches/main/rename
        PUT R/branches/main/protection
        DELETE R/branches/main/protection
        POST R/branches/main/protection/enforce_admins
        POST R/rulesets
        PUT R/rulesets/1
        PATCH R
        POST R
        DELETE R
        PUT R/topics
        POST R/releases
        PATCH R/releases/1
        DELETE R/releases/1
        POST R/releases/generate-notes
        POST R/tags/protection
        POST R/forks
        POST R/generate
        POST R/transfer
        PUT R/import
        POST R/dispatches
        POST R/actions/workflows/ci.yml/dispatches
        PUT R/actions/workflows/ci.yml/enable
        POST R/actions/runs/1/rerun
        POST R/actions/runs/1/approve
        POST R/actions/runs/1/pending_deployments
        DELETE R/actions/runs/1/logs
        PUT R/actions/permissions
        GET R/actions/secrets
        GET R/actions/secrets/public-key
        PUT R/actions/secrets/S
        GET R/actions/organization-secrets
        GET R/actions/variables
        POST R/actions/variables
        PATCH R/actions/variables/V
        GET R/actions/runners
        POST R/actions/runners/registration-token
        POST R/actions/runners/generate-jitconfig
        GET R/environments
        PUT R/environments/prod
        GET R/environments/prod/secrets
        PUT R/environments/prod/variables/V
        GET R/dependabot/secrets
        GET R/codespaces
        POST R/codespaces
        POST R/pulls/1/codespaces
        GET R/secret-scanning/alerts
        GET R/keys
        POST R/keys
        GET R/hooks
        POST R/hooks
        GET R/hooks/1/deliveries
        PUT R/collaborators/mallory
        GET R/invitations
        POST R/pages
        PUT R/pages
        POST R/deployments
        POST R/deployments/1/statuses
        POST R/statuses/0123
        POST R/check-runs
        PATCH R/check-runs/1
        POST R/check-suites/1/rerequest
        POST R/code-scanning/sarifs
        POST R/attestations
        PATCH R/properties/values
        PUT R/lfs
        POST R/autolinks
        DELETE R/vulnerability-alerts
        DELETE R/automated-security-fixes
        DELETE R/private-vulnerability-reporting
        PUT R/interaction-limits
        POST R/pulls/1/reviews
        POST R/pulls/1/reviews/2/events
        PUT R/pulls/1/reviews/2
        PUT R/pulls/1/reviews/2/dismissals
        GET R/compare/main...mallory:main
        GET R/compare/mallory:vault:main...main
        GET R/compare/main...mallory%3Amain
        GET R/compare/main...mallory:agent/x
        GET R/compare/main...mallory:agent%2Fx
        GET /repositories/1
        GET /repositories/1/contents/x
        POST /app/installations/1/access_tokens
        POST /app-manifests/c/conversions
        POST /applications/c/token
        GET /authorizations
        POST /credentials/revoke
        DELETE /installation/token
        GET /copilot_internal/v2/token
        GET /user/keys
        POST /user/keys
        POST /user/gpg_keys
        GET /user/emails
        GET /user/repos
        POST /user/repos
        POST /user/codespaces
        GET /user/installations
        PATCH /user
        POST /user
        POST /gists
        GET /gists
        GET /orgs/acme/actions/secrets
        POST /orgs/acme/repos
        GET /organizations/1/repos
        GET /enterprises/acme/actions/runners
        PUT /teams/1/members/mallory
        GET /scim/v2/organizations/acme/Users
    """,
    "gitlab": """
        GET R
        PUT R
        POST R
        DELETE R
        POST R/archive
        POST R/restore
        POST R/housekeeping
        POST R/repository/commits
        POST R/repository/files/x
        PUT R/repository/files/.gitlab-ci.yml
        DELETE R/repository/files/x
        POST R/repository/branches
        DELETE R/repository/branches/main
        POST R/repository/tags
        POST R/repository/commits/0123/cherry_pick
        POST R/repository/commits/0123/revert
        POST R/repository/changelog
        PUT R/repository/submodules/x
        PUT R/merge_requests/1/merge
        POST R/merge_requests/1/cancel_merge_when_pipeline_succeeds
        PUT R/merge_requests/1/rebase
        POST R/merge_requests/1/approve
        POST R/merge_requests/1/unapprove
        PUT R/merge_requests/1/reset_approvals
        POST R/merge_requests/1/approvals
        POST R/merge_requests/1/approval_rules
        POST R/merge_requests/1/pipelines
        POST R/merge_requests/1/draft_notes
        POST R/merge_requests/1/draft_notes/bulk_publish
        POST R/merge_trains/merge_requests/1
        PUT /suggestions/1/apply
        POST R/pipeline
        POST R/pipelines/1/retry
        POST R/jobs/1/play
        GET R/pipelines/1/variables
        GET R/variables
        POST R/variables
        GET R/secure_files
        GET R/triggers
        POST R/triggers
        POST R/trigger/pipeline
        POST R/ref/main/trigger/pipeline
        GET R/pipeline_schedules
        GET R/hooks
        POST R/hooks
        PUT R/integrations/slack
        GET R/services/jira
        POST R/remote_mirrors
        POST R/mirror/pull
        GET R/access_tokens
        POST R/access_tokens
        POST R/deploy_tokens
        POST R/deploy_keys
        GET R/runners
        POST R/runners/reset_registration_token
        GET R/cluster_agents/1/tokens
        GET R/terraform/state/x
        GET R/feature_flags
        PATCH R/job_token_scope
        GET R/pages/domains
        DELETE R/pages
        POST R/environments
        POST R/deployments
        POST R/statuses/0123
        POST R/releases
        POST R/members
        POST R/invitations
        POST R/share
        POST R/fork
        PUT R/transfer
        GET R/export/download
        POST R/uploads
        PUT R/packages/generic/x/1/y
        POST R/snippets
        POST R/protected_branches
        DELETE R/protected_branches/main
        POST R/protected_tags
        PUT R/push_rule
        POST R/approvals
        GET R/approval_rules
        POST /projects
        POST /projects/user/1
        POST /projects/import
        POST /projects/remote-import
        POST /import/github
        POST /bulk_imports
        POST /snippets
        GET /groups/1/variables
        POST /groups/1/access_tokens
        POST /groups
        POST /personal_access_tokens/self/rotate
        GET /personal_access_tokens
        POST /user/personal_access_tokens
        GET /user/keys
        POST /users/1/impersonation_tokens
        POST /users
        POST /user/runners
        POST /runners
        GET /applications
        PUT /application/settings
        POST /hooks
        POST /code_suggestions/direct_access
        GET /job
        POST /internal/allowed
        GET /admin/ci/variables
        GET /audit_events
        GET /projects/42
        PUT /projects/42
        GET /projects/42/variables
        POST /projects/42/repository/commits
    """,
    "gitea": """
        POST R
        PATCH R
        DELETE R
        POST R/contents
        POST R/contents/x
        PUT R/contents/.gitea/workflows/x.yml
        DELETE R/contents/x
        POST R/diffpatch
        POST R/branches
        PATCH R/branches/main
        DELETE R/branches/main
        POST R/branch_protections
        GET R/branch_protections
        POST R/tag_protections
        POST R/tags
        DELETE R/tags/v1
        POST R/git/notes/0123
        POST R/git/refs
        POST R/merge-upstream
        POST R/sync_fork
        POST R/mirror-sync
        POST R/push_mirrors
        POST R/push_mirrors-sync
        POST R/pulls/1/merge
        DELETE R/pulls/1/merge
        POST R/pulls/1/update
        POST R/pulls/1/reviews
        POST R/pulls/1/reviews/2
        POST R/pulls/1/reviews/2/dismissals
        POST R/statuses/0123
        POST R/releases
        PATCH R/releases/1
        DELETE R/releases/tags/v1
        POST R/forks
        POST R/generate
        POST R/transfer
        POST R/transfer/accept
        PUT R/topics
        POST R/wiki/new
        POST R/avatar
        GET R/keys
        POST R/keys
        GET R/hooks
        POST R/hooks
        GET R/hooks/git
        PATCH R/hooks/git/pre-receive
        GET R/actions/secrets
        PUT R/actions/secrets/S
        GET R/actions/variables
        POST R/actions/variables/V
        GET R/actions/runners/registration-token
        POST R/actions/workflows/ci.yml/dispatches
        PUT R/collaborators/mallory
        PUT R/teams/t
        GET R/compare/main...mallory:main
        GET R/compare/main...mallory/vault:main
        GET R/compare/main...mallory%2Fvault:main
        POST /users/acme/tokens
        GET /users/acme/tokens
        POST /user/keys
        GET /user/emails
        POST /user/repos
        GET /user/repos
        GET /user/actions/runners/registration-token
        POST /user/applications/oauth2
        POST /repos/migrate
        GET /repositories/1
        POST /orgs
        POST /orgs/acme/repos
        GET /orgs/acme/actions/secrets
        POST /admin/users
        GET /admin/users
        GET /teams/1
        DELETE /packages/acme/generic/x/1
        POST /activitypub/user-id/1/inbox
    """,
}
"""Refused at every level, and under a policy's broad `allow` by a guard."""

UNLISTED = {
    "github": """
        GET R/issues/1/timeline
        GET R/issues/1/sub_issues
        GET R/issues/1/parent
        GET R/issues/1/dependencies/blocked_by
        POST R/issues
        PATCH R/issues/1
        POST R/issues/1/labels
        PUT R/issues/1/labels
        PATCH R/issues/comments/5
        DELETE R/issues/comments/5
        PUT R/issues/1/lock
        POST R/issues/1/assignees
        PATCH R/pulls/comments/5
        DELETE R/pulls/1/requested_reviewers
        GET R/forks
        GET R/traffic/clones
        GET R/deployments
        GET /users/mallory
        GET /search/code
        GET /search/issues
        GET /notifications
        GET /events
        GET /repos/acme
        GET /repos/acme/vault
        GET /repos/acme/vault/contents/x
        POST /repos/acme/vault/pulls
        POST /repos/acme/vault/issues/1/comments
        GET /repos/acme/widgets.git
        GET /repos/acme/widgets.wiki/contents/x
        GET /repos/mallory/widgets/pulls
    """,
    "gitlab": """
        POST R/issues
        PUT R/issues/1
        POST R/issues/1/notes
        PUT R/merge_requests/1
        DELETE R/merge_requests/1
        POST R/merge_requests/1/notes
        POST R/merge_requests/1/discussions
        POST R/merge_requests/1/todo
        GET R/issues/1/links
        GET R/issues/1/related_merge_requests
        GET R/issues/1/closed_by
        GET R/merge_requests/1/closes_issues
        GET R/merge_requests/1/related_issues
        GET R/search
        GET /projects
        GET /groups
        GET /search
        GET /users/1
        GET /projects/42/issues
        POST /projects/42/merge_requests
        GET /projects/acme%2Fvault/issues
        GET /projects/acme%2Fwidgets%2Fsub/issues
        GET /projects/acme%2Fvault/repository/files/x/raw
        POST /projects/acme%2Fvault/merge_requests
        GET /projects/acme/vault/issues
    """,
    "gitea": """
        POST R/issues
        PATCH R/issues/1
        DELETE R/issues/1
        POST R/issues/1/labels
        PUT R/issues/1/labels
        PATCH R/issues/comments/5
        GET R/issues/1/timeline
        GET R/issues/1/dependencies
        GET R/issues/1/blocks
        POST R/issues/1/dependencies
        GET R/forks
        GET R/signing-key.gpg
        GET /users/search
        GET /repos/search
        GET /repos/issues/search
        GET /repos/acme/vault
        GET /repos/acme/vault/contents/x
        POST /repos/acme/vault/pulls
        GET /repos/mallory/widgets/pulls
    """,
}
"""Harmless in the right hands, or another repository's: refused because no rule names it."""

MALFORMED = {
    "github": """
        GET R/../vault
        GET R/%2e%2e/vault/contents/x
        GET R/contents/..%2F..%2F..%2Fvault
        GET R//contents
        GET R/contents/x;y
        GET R/contents/%252e%252e
        GET R/contents/x%5Cy
        GET R/contents/x%00
    """,
    "gitlab": """
        GET R/../acme%2Fvault/issues
        GET /projects/acme%2Fwidgets%2F..%2Fvault/repository/tree
        GET R/repository/files/..%2F..%2Fx/raw
        GET /projects/acme%252Fvault/issues
        GET R//issues
    """,
    "gitea": """
        GET R/../vault
        GET R/contents/..%2F..%2Fvault
        GET R//pulls
        GET R/contents/%252e%252e
    """,
}

Row = tuple[str, str, str]


def rows(table: dict[str, str]) -> list[Row]:
    """Entry, method and path, for each catalogue entry of the table's kind."""
    found = []
    for name, kind in KINDS.items():
        for line in table[kind.table].split("\n"):
            if line.strip():
                method, path = line.split()
                path = path.replace("R", kind.repository, 1) if path[0] == "R" else path
                found.append((name, method, kind.root + path))
    return found
