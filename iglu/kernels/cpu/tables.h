/* The tables of wide.h, written by tools/polynomials.py: do not edit.
 *
 * Column k holds the coefficients, lowest first, of a polynomial in d = 15 m - k, |d| <= 1/2;
 * the last row holds what the first coefficient lacks of its exact value:
 *   NEAR_VALUE  1/2 - arctan(m)/pi
 *   FAR_VALUE   arctan(m)/m
 *   NEAR_SLOPE  1/2 - (arctan(m) + m/(1+m^2))/pi
 *   FAR_SLOPE   (arctan(m)/m - 1/(1+m^2))/(pi m^2) */

/* error 2^-30.8 */
static const float NEAR_VALUE[6][16] = {
    {0x1.p-1f, 0x1.ea4d5ap-2f, 0x1.d4cb8p-2f, 0x1.bfa8b8p-2f,
     0x1.ab0e8cp-2f, 0x1.972028p-2f, 0x1.83f966p-2f, 0x1.71ae82p-2f,
     0x1.604c7ap-2f, 0x1.4fd9c2p-2f, 0x1.405748p-2f, 0x1.31c186p-2f,
     0x1.241192p-2f, 0x1.173e1cp-2f, 0x1.0b3c34p-2f, 0x1.p-2f},
    {-0x1.5bade4p-6f, -0x1.5a240ep-6f, -0x1.559b34p-6f, -0x1.4e4e96p-6f,
     -0x1.4498cap-6f, -0x1.38e94ep-6f, -0x1.2bb938p-6f, -0x1.1d80c8p-6f,
     -0x1.0eaf4p-6f, -0x1.ff4b08p-7f, -0x1.e166fp-7f, -0x1.c42f1ep-7f,
     -0x1.a7ffc8p-7f, -0x1.8d187cp-7f, -0x1.73a0f2p-7f, -0x1.5bade6p-7f},
    {-0x1.e9f1bcp-27f, 0x1.8816acp-14f, 0x1.7de204p-13f, 0x1.124d96p-12f,
     0x1.58ccbep-12f, 0x1.9086bp-12f, 0x1.b8f8ep-12f, 0x1.d2cecp-12f,
     0x1.df8d44p-12f, 0x1.e1378ep-12f, 0x1.d9fef2p-12f, 0x1.cc068p-12f,
     0x1.b93c22p-12f, 0x1.a344bcp-12f, 0x1.8b765ep-12f, 0x1.72da78p-12f},
    {0x1.08437cp-15f, 0x1.0088cap-15f, 0x1.d94af2p-16f, 0x1.9c5d5cp-16f,
     0x1.518e72p-16f, 0x1.005354p-16f, 0x1.5f83b2p-17f, 0x1.95510ep-18f,
     0x1.257e24p-19f, -0x1.08f91ep-20f, -0x1.d14fcep-19f, -0x1.633b0ep-18f,
     -0x1.b770a4p-18f, -0x1.ebfabep-18f, -0x1.03a394p-17f, -0x1.08428cp-17f},
    {-0x1.080746p-23f, -0x1.b77bb4p-22f, -0x1.9b78dap-21f, -0x1.14a922p-20f,
     -0x1.3d3206p-20f, -0x1.476f12p-20f, -0x1.38a5f4p-20f, -0x1.17b82ap-20f,
     -0x1.d91cacp-21f, -0x1.7afbbep-21f, -0x1.1f40a8p-21f, -0x1.997fbcp-22f,
     -0x1.0d2a96p-22f, -0x1.3651e6p-23f, -0x1.0a1708p-24f, -0x1.91c96p-26f},
    {-0x1.69d20cp-38f, -0x1.4e047ap-29f, -0x1.167682p-28f, -0x1.c86a72p-28f,
     0x1.919234p-29f, 0x1.d9f9bcp-27f, -0x1.28611ap-27f, 0x1.976462p-30f,
     0x1.2865ep-28f, 0x1.b5f922p-27f, 0x1.c893f2p-28f, -0x1.78932ap-28f,
     0x1.9e2fe4p-27f, 0x1.5a226p-28f, 0x1.886022p-27f, -0x1.8292d6p-41f},
};

/* error 2^-31.2 */
static const float FAR_VALUE[6][16] = {
    {0x1.p+0f, 0x1.ff3e56p-1f, 0x1.fcff76p-1f, 0x1.f95528p-1f,
     0x1.f45b4ap-1f, 0x1.ee3578p-1f, 0x1.e70c54p-1f, 0x1.df0ad8p-1f,
     0x1.d65beap-1f, 0x1.cd287p-1f, 0x1.c39604p-1f, 0x1.b9c614p-1f,
     0x1.afd58ep-1f, 0x1.a5dce2p-1f, 0x1.9bf03p-1f, 0x1.921fb6p-1f},
    {0x1.d306fap-34f, -0x1.824cc4p-9f, -0x1.7c3b32p-8f, -0x1.15dd84p-7f,
     -0x1.659294p-7f, -0x1.aba218p-7f, -0x1.e72264p-7f, -0x1.0be7e6p-6f,
     -0x1.1ef8f2p-6f, -0x1.2d1c56p-6f, -0x1.36cc5cp-6f, -0x1.3c9582p-6f,
     -0x1.3f099ep-6f, -0x1.3eb672p-6f, -0x1.3c1f9ep-6f, -0x1.37bb1cp-6f},
    {-0x1.845ca4p-10f, -0x1.7e3252p-10f, -0x1.6c468p-10f, -0x1.50362ap-10f,
     -0x1.2c5fd2p-10f, -0x1.038152p-10f, -0x1.b0ab88p-11f, -0x1.5a8f2cp-11f,
     -0x1.0881d4p-11f, -0x1.7a6a3p-12f, -0x1.e916cp-13f, -0x1.019a18p-13f,
     -0x1.f310bcp-16f, 0x1.89e03ap-15f, 0x1.c80d1ap-14f, 0x1.49f04cp-13f},
    {0x1.fdf956p-28f, 0x1.0494ap-16f, 0x1.f12962p-16f, 0x1.590c0ap-15f,
     0x1.9d9c8ep-15f, 0x1.c46acp-15f, 0x1.cf6652p-15f, 0x1.c30eacp-15f,
     0x1.a55136p-15f, 0x1.7c2e0ap-15f, 0x1.4d14fap-15f, 0x1.1c3d54p-15f,
     0x1.d9c296p-16f, 0x1.81c3d4p-16f, 0x1.33255ep-16f, 0x1.dc84f6p-17f},
    {0x1.084432p-18f, 0x1.f8c438p-19f, 0x1.b301d4p-19f, 0x1.4cb9fap-19f,
     0x1.ad2a9p-20f, 0x1.84bd96p-21f, -0x1.9d0df8p-25f, -0x1.614c6p-21f,
     -0x1.2364dcp-20f, -0x1.67aca8p-20f, -0x1.8485fap-20f, -0x1.8423p-20f,
     -0x1.6f9088p-20f, -0x1.4e1ebp-20f, -0x1.270db6p-20f, -0x1.0472b4p-20f},
    {-0x1.4254a8p-40f, -0x1.076674p-28f, -0x1.58a93ap-26f, -0x1.1975cep-26f,
     -0x1.819fa8p-27f, -0x1.68bd7cp-26f, 0x1.906fc8p-27f, 0x1.78bad8p-26f,
     -0x1.997074p-27f, 0x1.e9475p-26f, 0x1.09fdf2p-29f, -0x1.63b062p-26f,
     0x1.5147fp-27f, -0x1.69494ap-26f, -0x1.062162p-27f, -0x1.77827cp-26f},
};

/* error 2^-28.5 */
static const float NEAR_SLOPE[6][16] = {
    {0x1.p-1f, 0x1.d4ab18p-2f, 0x1.aa181ap-2f, 0x1.80f9fcp-2f,
     0x1.59e85ap-2f, 0x1.35574p-2f, 0x1.1393fp-2f, 0x1.e98c54p-3f,
     0x1.b1e9b6p-3f, 0x1.801952p-3f, 0x1.53ce3cp-3f, 0x1.2ca2a8p-3f,
     0x1.0a235p-3f, 0x1.d7b0aap-4f, 0x1.a2972cp-4f, 0x1.7419f2p-4f},
    {-0x1.5bade4p-5f, -0x1.589bf4p-5f, -0x1.4fa3aap-5f, -0x1.4172f2p-5f,
     -0x1.2f0bfep-5f, -0x1.199ec8p-5f, -0x1.0261e4p-5f, -0x1.d4e458p-6f,
     -0x1.a57b32p-6f, -0x1.77f36ap-6f, -0x1.4d4746p-6f, -0x1.260ce4p-6f,
     -0x1.02893cp-6f, -0x1.c5892p-7f, -0x1.8d3a52p-7f, -0x1.5bade6p-7f},
    {-0x1.59a8cp-25f, 0x1.865aa2p-12f, 0x1.77366ap-11f, 0x1.07c0bap-10f,
     0x1.41e88p-10f, 0x1.687942p-10f, 0x1.7c260cp-10f, 0x1.7f53d8p-10f,
     0x1.755a7cp-10f, 0x1.61d5fep-10f, 0x1.4826a4p-10f, 0x1.2b2642p-10f,
     0x1.0d0baep-10f, 0x1.dedc26p-11f, 0x1.a6b408p-11f, 0x1.72db0ap-11f},
    {0x1.083d5ep-13f, 0x1.fa05a4p-14f, 0x1.bf6ebcp-14f, 0x1.687146p-14f,
     0x1.023baap-14f, 0x1.33ec36p-15f, 0x1.d45f78p-17f, -0x1.500594p-18f,
     -0x1.4606a6p-16f, -0x1.ec563ap-16f, -0x1.27c1cep-15f, -0x1.3e4302p-15f,
     -0x1.409b0cp-15f, -0x1.35017ep-15f, -0x1.20b98ep-15f, -0x1.07dc3p-15f},
    {-0x1.42d8bep-21f, -0x1.4751c8p-19f, -0x1.2b9136p-18f, -0x1.83c58p-18f,
     -0x1.a52fccp-18f, -0x1.958e4cp-18f, -0x1.615866p-18f, -0x1.18d7b8p-18f,
     -0x1.962fe4p-19f, -0x1.0520fep-19f, -0x1.168aeap-20f, -0x1.67ebfep-22f,
     0x1.6a161p-23f, 0x1.0bd462p-21f, 0x1.73edaap-21f, 0x1.98b74ap-21f},
    {-0x1.118e06p-35f, 0x1.a0941ap-27f, -0x1.cd231cp-27f, -0x1.af048p-27f,
     -0x1.7f1968p-28f, 0x1.e00072p-28f, 0x1.3134bcp-28f, 0x1.cc62cap-28f,
     -0x1.63b5cap-28f, 0x1.ed5c36p-29f, -0x1.ae3dd6p-30f, -0x1.025568p-28f,
     0x1.c0177ap-28f, -0x1.e4cc1ep-33f, 0x1.7eadcp-29f, 0x1.1ae0cep-30f},
};

/* error 2^-28.2 */
static const float FAR_SLOPE[6][16] = {
    {0x1.b2995ep-3f, 0x1.b04adp-3f, 0x1.a98044p-3f, 0x1.9e98c4p-3f,
     0x1.902508p-3f, 0x1.7ed656p-3f, 0x1.6b6bd2p-3f, 0x1.56a194p-3f,
     0x1.41238ep-3f, 0x1.2b8536p-3f, 0x1.163db8p-3f, 0x1.01a7bcp-3f,
     0x1.dc075ep-4f, 0x1.b6f6b8p-4f, 0x1.944c3cp-4f, 0x1.7419f2p-4f},
    {0x1.ce4bccp-33f, -0x1.25e13ap-9f, -0x1.1db056p-8f, -0x1.99224ep-8f,
     -0x1.000876p-7f, -0x1.27cb74p-7f, -0x1.438bc2p-7f, -0x1.53ef2ap-7f,
     -0x1.5a476ep-7f, -0x1.5845ccp-7f, -0x1.4fb8ep-7f, -0x1.425bbep-7f,
     -0x1.31b7acp-7f, -0x1.1f1596p-7f, -0x1.0b7b12p-7f, -0x1.ef5da4p-8f},
    {-0x1.28afe8p-10f, -0x1.204e6p-10f, -0x1.084a54p-10f, -0x1.c77af2p-11f,
     -0x1.6e0c8cp-11f, -0x1.0dc188p-11f, -0x1.5e548p-12f, -0x1.63640ep-13f,
     -0x1.deb818p-16f, 0x1.6503b2p-14f, 0x1.676e4ap-13f, 0x1.e7a13ap-13f,
     0x1.1d43bap-12f, 0x1.3446ccp-12f, 0x1.3cf9ecp-12f, 0x1.3b0fa4p-12f},
    {0x1.07148cp-26f, 0x1.60b35ap-16f, 0x1.495016p-15f, 0x1.b90acp-15f,
     0x1.f6bc58p-15f, 0x1.019d6cp-14f, 0x1.e6c618p-15f, 0x1.ad93dp-15f,
     0x1.64a272p-15f, 0x1.16f4eap-15f, 0x1.999642p-16f, 0x1.162a6cp-16f,
     0x1.50e286p-17f, 0x1.4599p-18f, 0x1.ea007cp-21f, -0x1.084038p-19f},
    {0x1.67ee56p-18f, 0x1.5094bcp-18f, 0x1.0d42e4p-18f, 0x1.5d48dep-19f,
     0x1.218e5ap-20f, -0x1.3c6f08p-22f, -0x1.68a4a2p-20f, -0x1.0cb174p-19f,
     -0x1.33b8dep-19f, -0x1.33eebap-19f, -0x1.1a2ed8p-19f, -0x1.e3c45ep-20f,
     -0x1.88ebecp-20f, -0x1.3099eap-20f, -0x1.c2906ap-21f, -0x1.5a350ep-21f},
    {0x1.ed9dbcp-29f, -0x1.c4b738p-28f, 0x1.dce022p-28f, 0x1.5314f8p-29f,
     0x1.36415ap-34f, -0x1.7a885p-28f, 0x1.c9f5f4p-29f, 0x1.d61846p-28f,
     0x1.791152p-30f, 0x1.853932p-34f, -0x1.da703cp-30f, 0x1.d0b70cp-28f,
     0x1.ce06e2p-34f, -0x1.4448b6p-29f, 0x1.3bd33cp-29f, 0x1.1a54f2p-30f},
};
