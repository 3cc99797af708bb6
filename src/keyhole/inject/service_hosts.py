"""The services that a host belongs to, for hints about hosts that a policy does not name.

Reading the whole catalogue for a hint would take too long, and a gateway that is locked down cannot
read files. A test compares this list with the catalogue.
"""

from __future__ import annotations

_LISTED = """
airtable: api.airtable.com
amp: ampcode.com
anthropic/claude: api.anthropic.com
asana: app.asana.com
asana-mcp: mcp.asana.com
atlassian-api: api.atlassian.com
atlassian-mcp: mcp.atlassian.com
azure-artifacts: pkgs.dev.azure.com
azure-devops: dev.azure.com
bitbucket: api.bitbucket.org
bitbucket/bitbucket-api-token: bitbucket.org
brave-search: api.search.brave.com
buildkite: api.buildkite.com
cerebras: api.cerebras.ai
circleci: circleci.com
cloudflare: api.cloudflare.com
codeberg: codeberg.org
codestral: codestral.mistral.ai
codex/codex-pat: chatgpt.com
codex-pat: auth.openai.com
cohere: api.cohere.com api.cohere.ai
context7-mcp: mcp.context7.com
cursor: api2.cursor.sh agent.api5.cursor.sh agentn.api5.cursor.sh agent.global.api5.cursor.sh
    agentn.global.api5.cursor.sh
dashscope: dashscope-intl.aliyuncs.com dashscope.aliyuncs.com coding-intl.dashscope.aliyuncs.com
    coding.dashscope.aliyuncs.com
datadog: api.datadoghq.com api.us3.datadoghq.com api.us5.datadoghq.com api.ap1.datadoghq.com
    api.ap2.datadoghq.com api.datadoghq.eu api.ddog-gov.com
deepgram: api.deepgram.com
deepseek: api.deepseek.com
deepwiki-mcp: mcp.deepwiki.com
digitalocean: api.digitalocean.com
elevenlabs: api.elevenlabs.io
exa: api.exa.ai
factory: api.factory.ai
figma: api.figma.com
figma-mcp: mcp.figma.com
fireworks: api.fireworks.ai
fly: api.machines.dev
gemini: generativelanguage.googleapis.com
gemini-code-assist: cloudcode-pa.googleapis.com oauth2.googleapis.com www.googleapis.com
github: github.com raw.githubusercontent.com
github/github-copilot: api.github.com
github-copilot: api.individual.githubcopilot.com
    api.business.githubcopilot.com api.enterprise.githubcopilot.com
github-copilot/github-mcp: api.githubcopilot.com
github-packages: npm.pkg.github.com maven.pkg.github.com nuget.pkg.github.com
    rubygems.pkg.github.com
gitlab: gitlab.com
google-cloud: pubsub.googleapis.com storage.googleapis.com firestore.googleapis.com
    bigquery.googleapis.com bigquerystorage.googleapis.com
groq: api.groq.com
huggingface: huggingface.co router.huggingface.co
kimi: api.kimi.com api.moonshot.ai api.moonshot.cn
linear: api.linear.app uploads.linear.app
linear-mcp: mcp.linear.app
minimax: api.minimax.io api.minimaxi.com
mistral: api.mistral.ai
neon: console.neon.tech
netlify: api.netlify.com
notion: api.notion.com
notion-mcp: mcp.notion.com
openai: api.openai.com us.api.openai.com eu.api.openai.com
openrouter: openrouter.ai
pagerduty: api.pagerduty.com api.eu.pagerduty.com
perplexity: api.perplexity.ai
render: api.render.com
replicate: api.replicate.com
resend: api.resend.com
sendgrid: api.sendgrid.com api.eu.sendgrid.com
sentry: sentry.io us.sentry.io de.sentry.io
sentry-mcp: mcp.sentry.dev
shortcut: api.app.shortcut.com
slack: slack.com files.slack.com
stripe: api.stripe.com
stripe-mcp: mcp.stripe.com
supabase: api.supabase.com
supabase-mcp: mcp.supabase.com
tavily: api.tavily.com
together: api.together.ai api.together.xyz
twilio: api.twilio.com
vercel: api.vercel.com
vercel-mcp: mcp.vercel.com
voyage: api.voyageai.com
xai: api.x.ai
zai: api.z.ai open.bigmodel.cn
"""


def _read(listed: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    names: tuple[str, ...] = ()
    for word in listed.split():
        if word.endswith(":"):
            names = tuple(word[:-1].split("/"))
        else:
            found[word] = names
    return found


SERVICE_HOSTS = _read(_LISTED)
"""Names of catalogue entries, by the host that their credential is sent to."""

LOGGED_IN = frozenset(
    "asana-mcp atlassian-mcp figma-mcp linear-mcp notion-mcp sentry-mcp stripe-mcp supabase-mcp "
    "vercel-mcp".split()
)
"""Those of them whose credential is a login of Keyhole's own."""


def usual_secret(name: str) -> tuple[str, str]:
    """The reference of a service's secret, and the command that makes it available."""
    if name in LOGGED_IN:
        return f"login:{name}", f"keyhole login {name}"
    return f"store:{name}", f"keyhole secret set {name}"
